import { accessSync, constants, existsSync } from 'node:fs'
import { join } from 'node:path'

/** Files that each Debian package brings; all must be there. */
const packages = {
  apptainer: ['/usr/bin/apptainer'],
  'busybox-static': ['/bin/busybox'],
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
  parallel: ['/usr/bin/parallel'],
  podman: ['/usr/bin/podman'],
  'python3-minimal': ['/usr/bin/python3'],
  'python3-simgrid': ['/usr/lib/python3/dist-packages/simgrid.cpython-311-x86_64-linux-gnu.so'],
  'python3-venv': ['/usr/bin/python3', '/usr/lib/python3.11/ensurepip/__init__.py'],
  rclone: ['/usr/bin/rclone'],
  rsync: ['/usr/bin/rsync'],
  runc: ['/usr/sbin/runc'],
  shellcheck: ['/usr/bin/shellcheck'],
  skopeo: ['/usr/bin/skopeo'],
  'slurm-wlm': ['/usr/sbin/slurmctld', '/usr/sbin/slurmd', '/usr/bin/sbatch'],
  'slurm-wlm-jwt-plugin': ['/usr/lib/x86_64-linux-gnu/slurm-wlm/auth_jwt.so'],
  slurmdbd: ['/usr/sbin/slurmdbd'],
  slurmrestd: ['/usr/sbin/slurmrestd'],
  systemd: ['/lib/systemd/systemd'],
  time: ['/usr/bin/time'],
  'user-mode-linux': ['/usr/bin/linux.uml'],
} as const

export type Need = 'root' | 'shared' | 'traces' | keyof typeof packages

/** The recorded traces and sample documents beside the checkout. */
const sharedFolder = join(import.meta.dirname, '../../shared')

/** Folder of recorded workflows (WfInstances): the one that `ORRERY_TRACES` names, or that of the data beside the checkout. */
export const recordedTraces = process.env['ORRERY_TRACES'] ?? join(sharedFolder, 'data/wfinstances')

const isThere = (path: string): boolean => {
  try {
    accessSync(path, constants.F_OK)
    return true
  } catch {
    return false
  }
}

/** Whether this machine and this account have what a test needs. */
export const isMet = (need: Need): boolean => {
  if (need === 'root') return process.getuid?.() === 0
  if (need === 'shared') return existsSync(sharedFolder)
  if (need === 'traces') return existsSync(recordedTraces)
  return packages[need].every(isThere)
}

/** What would bring a missing need, as a line for a person. */
export const remedy = (need: string): string => {
  if (need === 'root') return 'run the tests as root: sudo npm test'
  if (need === 'shared') return `put the recorded data beside the checkout: ${sharedFolder}`
  if (need === 'traces') return 'name a folder with instances of github.com/wfcommons/WfInstances in ORRERY_TRACES'
  return `install the package: apt-get install ${need}`
}

/** What each site of the tests needs (`sites/`). */
export const sites = {
  /** sshd for the account that runs the tests. */
  sshd: ['openssh-server', 'openssh-client'],
  ssh: ['root', 'openssh-server', 'openssh-client', 'iproute2', 'iptables'],
  kernelHost: ['root', 'openssh-server', 'user-mode-linux', 'systemd', 'dbus', 'dbus-user-session', 'libpam-systemd', 'gcc', 'libc6-dev'],
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
