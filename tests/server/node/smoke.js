// What a program in Node does with Google's client: prints what it saw, as JSON, one line.
'use strict';
const {PubSub} = require('@google-cloud/pubsub');

const pubsub = new PubSub({projectId: 'shop'});

function collected(subscription, count, handle) {
  return new Promise((resolve, reject) => {
    const seen = [];
    subscription.on('error', reject);
    subscription.on('message', message => {
      seen.push(message.data.toString());
      handle(message, seen);
      if (seen.length === count) resolve(seen);
    });
  });
}

async function admin() {
  const [topic] = await pubsub.createTopic('orders');
  const [exists] = await topic.exists();
  const [missing] = await pubsub.topic('missing').exists();
  const again = await pubsub.createTopic('orders').then(() => 0, error => error.code);
  const [subscription] = await topic.createSubscription('worker', {
    enableMessageOrdering: true,
    ackDeadlineSeconds: 30,
    labels: {team: 'north'},
  });
  await subscription.setMetadata({ackDeadlineSeconds: 45});
  const [metadata] = await subscription.getMetadata();
  const [topics] = await pubsub.getTopics();
  const [subscriptions] = await topic.getSubscriptions();
  return {
    exists,
    missing,
    again,
    ackDeadlineSeconds: metadata.ackDeadlineSeconds,
    labels: metadata.labels,
    ordering: metadata.enableMessageOrdering,
    topics: topics.map(one => one.name),
    subscriptions: subscriptions.map(one => one.name),
  };
}

// Ordered publish, and a subscriber that fails once in the middle: the key goes on from there.
async function ordered() {
  const topic = pubsub.topic('orders', {messageOrdering: true});
  const subscription = pubsub.subscription('worker');
  let failed = false;
  const done = collected(subscription, 6, message => {
    if (message.data.toString() === 'b' && !failed) {
      failed = true;
      message.nack();
    } else {
      message.ack();
    }
  });
  for (const letter of 'abcde') topic.publishMessage({data: Buffer.from(letter), orderingKey: 'key'});
  await topic.flush();
  let seen = await done;
  // What was behind the one that failed may have been on its way: it comes again.
  const rest = [];
  await new Promise(resolve => {
    let last = setTimeout(resolve, 300);
    subscription.removeAllListeners('message');
    subscription.on('message', message => {
      rest.push(message.data.toString());
      message.ack();
      clearTimeout(last);
      last = setTimeout(resolve, 300);
    });
  });
  await subscription.close();
  return seen.concat(rest);
}

// What waits behind a publish that failed is not published, until the key is resumed.
async function resume() {
  const topic = pubsub.topic('orders', {messageOrdering: true, batching: {maxMessages: 1}});
  const outcome = (data, attributes) =>
    topic
      .publishMessage({data: Buffer.from(data), attributes, orderingKey: 'paused'})
      .then(() => 'published', error => error.code || 'paused');
  const [refused, behind] = await Promise.all([outcome('x', {goog: 'reserved'}), outcome('y', {})]);
  topic.resumePublishing('paused');
  return {refused, behind, resumed: await outcome('z', {})};
}

async function pull() {
  const {v1} = require('@google-cloud/pubsub');
  const [host, port] = process.env.PUBSUB_EMULATOR_HOST.split(':');
  const grpc = require('@grpc/grpc-js');
  const client = new v1.SubscriberClient({servicePath: host, port, sslCreds: grpc.credentials.createInsecure()});
  const subscription = client.subscriptionPath('shop', 'worker');
  const [response] = await client.pull({subscription, maxMessages: 10});
  const received = response.receivedMessages;
  await client.acknowledge({subscription, ackIds: received.map(one => one.ackId)});
  await client.close();
  return received.map(one => [one.message.orderingKey, one.message.data.toString()]);
}

async function remove() {
  await pubsub.subscription('worker').delete();
  await pubsub.topic('orders').delete();
  const code = await pubsub.subscription('worker').delete().then(() => 0, error => error.code);
  return {code};
}

async function main() {
  const told = {};
  for (const step of [admin, ordered, resume, pull, remove]) told[step.name] = await step();
  await pubsub.close();
  console.log(JSON.stringify(told));
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
