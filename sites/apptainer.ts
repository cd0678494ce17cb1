import { existsSync, mkdirSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { configFromEnvironment } from '../src/config.ts'
import { run } from './ground.ts'
import type { Host } from './hosts.ts'

/**
 * Debian 12 has no Apptainer. This takes the one of the unstable distribution, with the C library
 * of the stable one that it needs. The packages stay in the cache; the machine's own package lists
 * do not change.
 */
const install = `set -eu
cache=$1
get() { # SUITE PACKAGE
  work=$(mktemp -d)
  mkdir -p "$work/lists/partial"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/*$')
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" > "$work/list"
  options="-o Dir::Etc::sourcelist=$work/list -o Dir::Etc::sourceparts=-"
  options="$options -o Dir::State::lists=$work/lists -o Dir::Cache=$work -o Dir::State::status=/dev/null"
  options="$options -o APT::Sandbox::User=root"
  apt-get $options update -qq
  (cd "$cache" && apt-get $options download -qq "$2")
  rm -rf "$work"
}
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends \\
  patchelf squashfs-tools squashfuse fuse3 uidmap libseccomp2 libsqlite3-0 > /dev/null
ls "$cache"/apptainer_*.deb > /dev/null 2>&1 || get sid apptainer
ls "$cache"/libc6_*.deb > /dev/null 2>&1 || get trixie libc6
place=/opt/apptainer libraries=/opt/apptainer/glibc/usr/lib/x86_64-linux-gnu own=/usr/lib/x86_64-linux-gnu/apptainer
rm -rf "$place"
mkdir -p "$place"
dpkg-deb -x "$cache"/libc6_*.deb "$place/glibc"
dpkg-deb -x "$cache"/apptainer_*.deb "$place/x"
cp -a "$place/x/etc/apptainer" /etc/
cp -a "$place/x$own" /usr/lib/x86_64-linux-gnu/
cp -a "$place/x/var/lib/apptainer" /var/lib/
cp "$place/x/usr/bin/run-singularity.apptainer" /usr/bin/run-singularity
cp "$place/x/usr/bin/apptainer" /usr/bin/.apptainer
for program in /usr/bin/.apptainer "$own/bin/starter"; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" \\
    --set-rpath "$libraries:/usr/lib/x86_64-linux-gnu" "$program"
done
# Root may lack CAP_SYS_RESOURCE, and there is no systemd.
sed -i -e 's/^root default capabilities = full/root default capabilities = no/' \\
  -e 's/^systemd cgroups = yes/systemd cgroups = no/' \\
  /etc/apptainer/apptainer.conf
mv /usr/bin/.apptainer /usr/bin/apptainer
`

/** Installs Apptainer on this machine where it is missing. @throws Error with the obstacle */
export const haveApptainer = async (): Promise<void> => {
  if (existsSync('/usr/bin/apptainer')) return
  if (process.getuid?.() !== 0) throw new Error('apptainer is missing, and only root can install it')
  const cache = join(configFromEnvironment().cacheDir, 'apptainer')
  mkdirSync(cache, { recursive: true })
  await run('flock', [cache, '/bin/sh', '-c', install, 'install', cache], { deadlineMs: 600_000 })
  if (readdirSync(cache).length === 0) throw new Error('apptainer could not be had')
}

/**
 * Gives one host devices of its own, so that their permissions can be changed. An account can mount
 * its own /proc only where nothing is mounted over the host's /proc.
 */
const openUp = `set -e
umount /proc/sys/kernel/random/boot_id
mkdir /run/dev
mount -t tmpfs -o mode=755 dev /run/dev
cp -a $(find /dev -mindepth 1 -maxdepth 1 ! -type d) /run/dev/
chmod 666 /run/dev/fuse
while [ "$gpus" -gt 0 ]; do gpus=$((gpus - 1)); mknod -m 666 "/run/dev/nvidia$gpus" c 1 3; done
for folder in pts shm; do mkdir "/run/dev/$folder"; mount --bind "/dev/$folder" "/run/dev/$folder"; done
mount --rbind /run/dev /dev
`

/**
 * Lets accounts of a host run Apptainer in their own namespaces, and adds GPUs `/dev/nvidia0` …
 * that behave like /dev/null. Once per boot.
 */
export const allowApptainer = async (host: Host, gpus = 0): Promise<void> => {
  await host.run(`gpus=${gpus}\n${openUp}`)
}
