"""Schemas: what the messages of a topic must look like, in Avro or protocol buffers.

`avro_types`, `avro_json`, `avro_binary` and `avro_evolution` are Avro, `protobuf` is protocol buffers; `definition`
puts one face on both. `book` has the schemas and their revisions, and `service` answers google.pubsub.v1 with it.
"""
