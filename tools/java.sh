#!/bin/sh
# Spark needs Java 17 or later. Where it is missing, install it if we may, and otherwise say how.
# Never fails: all but the Spark pipelines works without.

version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] && exit 0

if command -v apt-get >/dev/null; then
    install="apt-get install -y openjdk-17-jre-headless"
elif command -v dnf >/dev/null; then
    install="dnf install -y java-17-openjdk-headless"
elif command -v apk >/dev/null; then
    install="apk add openjdk17-jre-headless"
elif command -v brew >/dev/null; then
    install="brew install openjdk@17"
else
    install="your package manager, a JRE of version 17 or later"
fi

if [ "$(id -u)" = 0 ] && [ "${install%% *}" != your ] && command -v "${install%% *}" >/dev/null; then
    echo "Installing Java for Spark: $install"
    { [ "${install%% *}" != apt-get ] || apt-get update -qq; } && $install >/dev/null && exit 0
fi
echo "Spark needs Java 17 or later, and this machine has ${version:-none}. To install it: sudo $install" >&2
