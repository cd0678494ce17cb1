import { accessSync, constants, existsSync } from 'node:fs'
import { join } from 'node:path'

/** Gives a program that is started with it as LD_PRELOAD another clock. */
export const libfaketime = '/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1'

/** Files of each Debian package; a package is present where all of them exist. */
const packages = {
  'ansible-core': ['/usr/bin/ansible-playbook'],
  apptainer: ['/usr/bin/apptainer'],
  bubblewrap: ['/usr/bin/bwrap'],
  'busybox-static': ['/bin/busybox'],
  'ceph-mon': ['/usr/bin/ceph-mon', '/usr/bin/ceph'],
  'ceph-osd': ['/usr/bin/ceph-osd'],
  chromium: ['/usr/bin/chromium'],
  containerd: ['/usr/bin/containerd'],
  'containernetworking-plugins': ['/usr/lib/cni/bridge'],
  crun: ['/usr/bin/crun'],
  curl: ['/usr/bin/curl'],
  dbus: ['/usr/bin/dbus-daemon'],
  'dbus-user-session': ['/usr/lib/systemd/user/dbus.socket'],
  debootstrap: ['/usr/sbin/debootstrap'],
  'docker-registry': ['/usr/bin/docker-registry'],
  'docker.io': ['/usr/sbin/dockerd', '/usr/bin/docker'],
  faketime: [libfaketime],
  gcc: ['/usr/bin/gcc'],
  iproute2: ['/sbin/ip'],
  iptables: ['/usr/sbin/iptables'],
  'libc6-dev': ['/usr/include/stdio.h'],
  'libpam-systemd': ['/usr/share/pam-configs/systemd'],
  make: ['/usr/bin/make'],
  'mariadb-server': ['/usr/sbin/mariadbd'],
  montage: ['/usr/bin/mProject'],
  munge: ['/usr/sbin/munged'],
  netavark: ['/usr/lib/podman/netavark'],
  'openssh-client': ['/usr/bin/ssh', '/usr/bin/ssh-keygen'],
  'openssh-server': ['/usr/sbin/sshd'],
  openssl: ['/usr/bin/openssl'],
  // GNU's. That of moreutils has the first of these names too.
  parallel: ['/usr/bin/parallel', '/usr/bin/parsort'],
  podman: ['/usr/bin/podman'],
  prometheus: ['/usr/bin/prometheus', '/usr/bin/promtool'],
  'python3-minimal': ['/usr/bin/python3'],
  'python3-simgrid': ['/usr/lib/python3/dist-packages/simgrid.cpython-311-x86_64-linux-gnu.so'],
  'python3-venv': ['/usr/bin/python3', '/usr/lib/python3.11/ensurepip/__init__.py'],
  radosgw: ['/usr/bin/radosgw', '/usr/bin/radosgw-admin'],
  rclone: ['/usr/bin/rclone'],
  rsync: ['/usr/bin/rsync'],
  runc: ['/usr/sbin/runc'],
  shellcheck: ['/usr/bin/shellcheck'],
  skopeo: ['/usr/bin/skopeo'],
  'squashfs-tools': ['/usr/bin/sqfstar'],
  'slurm-wlm': ['/usr/sbin/slurmctld', '/usr/sbin/slurmd', '/usr/bin/sbatch'],
  'slurm-wlm-jwt-plugin': ['/usr/lib/x86_64-linux-gnu/slurm-wlm/auth_jwt.so'],
  slurmdbd: ['/usr/sbin/slurmdbd'],
  slurmrestd: ['/usr/sbin/slurmrestd'],
  sshfs: ['/usr/bin/sshfs'],
  systemd: ['/lib/systemd/systemd'],
  time: ['/usr/bin/time'],
  unzip: ['/usr/bin/unzip'],
  'user-mode-linux': ['/usr/bin/linux.uml'],
  zip: ['/usr/bin/zip'],
} as const

export type Need = 'root' | 'shared' | 'traces' | keyof typeof packages

/** The recorded traces and sample documents beside the checkout. */
const sharedFolder = join(import.meta.dirname, '../../shared')

/**
 * Folder of recorded workflows (WfInstances): the one that `ORRERY_TRACES` names, or the one in the
 * data beside the checkout.
 */
export const recordedTraces = process.env['ORRERY_TRACES'] ?? join(sharedFolder, 'data/wfinstances')

const isThere = (path: string): boolean => {
  try {
    accessSync(path, constants.F_OK)
    return true
  } catch {
    return false
  }
}

/** Whether this machine and this account meet a test's need. */
export const isMet = (need: Need): boolean => {
  if (need === 'root') return process.getuid?.() === 0
  if (need === 'shared') return existsSync(sharedFolder)
  if (need === 'traces') return existsSync(recordedTraces)
  return packages[need].every(isThere)
}

/** The remedy for a missing need, as a line for a person. */
export const remedy = (need: string): string => {
  if (need === 'root') return 'run the tests as root: sudo npm test'
  if (need === 'shared') return `put the recorded data beside the checkout: ${sharedFolder}`
  if (need === 'traces')
    return 'name a folder with instances of github.com/wfcommons/WfInstances in ORRERY_TRACES'
  return `install the package: apt-get install ${need}`
}

/** The needs of each site of the tests (`sites/`). */
export const sites = {
  /** sshd for the account that runs the tests. */
  sshd: ['openssh-server', 'openssh-client'],
  ssh: ['root', 'openssh-server', 'openssh-client', 'iproute2', 'iptables'],
  kernelHost: [
    'root',
    'openssh-server',
    'user-mode-linux',
    'systemd',
    'dbus',
    'dbus-user-session',
    'libpam-systemd',
    'gcc',
    'libc6-dev',
  ],
  slurm: [
    'root',
    'openssh-server',
    'openssh-client',
    'iproute2',
    'iptables',
    'slurm-wlm',
    'munge',
    'slurmrestd',
    'slurmdbd',
    'mariadb-server',
  ],
  kubernetes: [
    'root',
    'containerd',
    'crun',
    'containernetworking-plugins',
    'busybox-static',
    'docker-registry',
    'skopeo',
    'gcc',
    'libc6-dev',
    'openssl',
    'iproute2',
    'iptables',
  ],
  docker: ['root', 'docker.io', 'runc', 'iptables', 'debootstrap'],
  podman: ['root', 'podman', 'runc', 'netavark'],
} as const satisfies Record<string, readonly Need[]>

/** A host that mounts a folder by NFS: the modules come with the kernel's package. */
export const nfsNeeds = [...sites.kernelHost, 'busybox-static'] as const
