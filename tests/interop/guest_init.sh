#!/bin/sh
# The guest's init: loads rdma_rxe, brings up eth0 and rxe0, then runs what arrives on the second serial port: one line of base64
# in, a shell command; out come the lines BEGIN, its output in base64, END and its exit status.
export PATH=/usr/sbin:/usr/bin HOME=/tmp TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /tmp
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
# shellcheck disable=SC3045 # busybox knows it
ulimit -l unlimited
echo 1 >/proc/sys/kernel/printk

# argument NAME: the value of sluice.NAME on the kernel's command line
argument() {
  tr ' ' '\n' </proc/cmdline | sed -n "s/^sluice\.$1=//p"
}

while read -r module; do
  insmod "/modules/$module" || echo "init: $module does not load"
done </modules/order

n=0
while [ ! -e /sys/class/net/eth0 ] && [ $n -lt 100 ]; do
  sleep 0.1
  n=$((n + 1))
done
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 # so that GID 1 is the IPv4 one
ip link set lo up
ip link set eth0 mtu "$(argument mtu)" up
ip addr add "$(argument address)" dev eth0
rdma link add rxe0 type rxe netdev eth0
hostname "$(argument name)"

stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 >/dev/ttyS1
echo READY
while :; do
  read -r sum line || {
    sleep 0.1
    continue
  }
  case $sum in
    "") ;;
    OFF) poweroff -f ;;
    *)
      # On a busy machine the serial line loses bytes.
      if [ "$(echo "$line" | md5sum | cut -c 1-8)" != "$sum" ]; then
        echo "BEGIN"
        echo "END AGAIN"
        continue
      fi
      # busybox sh prefers its own applets: name the real ones
      {
        echo 'ip() { /usr/bin/ip "$@"; }; tc() { /usr/sbin/tc "$@"; }'
        echo "$line" | base64 -d
      } >/tmp/.command
      sh /tmp/.command >/tmp/.output 2>&1 </dev/null
      status=$?
      echo BEGIN
      base64 /tmp/.output
      echo "END $status"
      ;;
  esac
done
