#!/bin/bash
# Ping-pong between two processes over each EFA device of this node, one after another.
set -u
devices=$(ls /sys/class/infiniband)
slowest=""
for device in $devices; do
    FI_EFA_IFACE=$device timeout 30 fi_pingpong -p efa -e rdm >/dev/null 2>&1 &
    server=$!
    sleep 1
    told=$(FI_EFA_IFACE=$device timeout 30 fi_pingpong -p efa -e rdm -S 1048576 -I 200 localhost 2>&1)
    code=$?
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    rate=$(printf '%s\n' "$told" | awk '/MB|1m/ { rate = $(NF - 2) } END { print rate }')
    if [ "$code" -ne 0 ] || [ -z "$rate" ]; then
        echo "HEALTH_CHECK_RESULT:$(hostname -s):Failed:replace:EFA $device: no loopback (exit $code)"
        exit 1
    fi
    # fi_pingpong prints MB/s.
    slowest=$(printf '%s %s\n' "${slowest:-$rate}" "$rate" | awk '{ print ($1 < $2) ? $1 : $2 }')
done
awk -v mbs="$slowest" 'BEGIN { printf "{\"figures\": {\"efa_loopback_gbs\": %.3f}}\n", mbs / 1000 }'
