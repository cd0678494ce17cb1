/** A group of proofs: tests on real sites, of faults, of bounds and of figures. */
export interface ProofGroup {
  /** What it needs beside what the gate needs: an account, Debian packages, other things. */
  needs: string
  /** Files below `test/`, without their ending. */
  files: readonly string[]
  /** A change below one of these paths asks for the group. */
  askedBy: readonly string[]
}

/** The groups of `npm run proof`. Each file `*.proof.test.ts` is in exactly one. */
export const proofGroups: Readonly<Record<string, ProofGroup>> = {
  kubernetes: {
    needs:
      'root, containerd, crun, containernetworking-plugins, busybox-static, docker-registry, skopeo, gcc, libc6-dev',
    files: [
      'drivers/kubernetes',
      'drivers/kubernetes-failures',
      'drivers/kubernetes-courier',
      'sites/kubernetes',
      'shared/kind',
      'execution-runs/reach-places',
      'bench/kubernetes',
    ],
    askedBy: ['src/drivers/runtime/batch', 'src/drivers/runtime/kubernetes', 'src/clients/kubernetes'],
  },
  slurm: {
    needs: 'root, slurm-wlm, munge, slurmrestd, slurm-wlm-jwt-plugin, slurmdbd, mariadb-server, procps',
    files: [
      'drivers/slurm',
      'drivers/slurm-failures',
      'drivers/slurm-commands',
      'api/environment-connections-sites',
      'execution-runs/reach',
      'examples/sites',
      'clients/rebinding',
      'sites/slurm',
      'sites/leash',
    ],
    askedBy: ['src/drivers/runtime/batch', 'src/drivers/runtime/slurm'],
  },
  containers: {
    needs: 'root, docker.io, runc, debootstrap, podman, netavark',
    files: [
      'drivers/container',
      'drivers/container-failures',
      'drivers/container-engines',
      'drivers/container-ssh',
      'api/container-engines',
      'sites/docker',
      'sites/site',
    ],
    askedBy: ['src/drivers/runtime/container'],
  },
  ssh: {
    needs:
      'root, iproute2, iptables, user-mode-linux, systemd, dbus, dbus-user-session, libpam-systemd, gcc, libc6-dev',
    files: [
      'drivers/ssh',
      'drivers/ssh-failures',
      'drivers/ssh-limits',
      'drivers/local',
      'drivers/serverless',
      'drivers/serverless-failures',
      'clients/known-hosts',
      'clients/ssh-failures',
      'clients/ssh-sessions',
      'clients/ssh-relay',
      'execution-runs/one-login',
      'execution-runs/reach-failures',
      'transfer/hosts',
      'transfer/transfer',
      'sites/ssh',
      'workflows/environment-connection',
    ],
    askedBy: [
      'src/clients/ssh',
      'src/connections',
      'src/drivers/runtime/local',
      'src/drivers/runtime/remote',
      'src/drivers/transfer',
    ],
  },
  kills: {
    needs: 'as kubernetes, slurm and containers',
    files: [
      'failures/rounds',
      'failures/accepted',
      'failures/frozen-worker',
      'failures/given-up',
      'failures/counted',
      'failures/ledgers',
      'failures/reach',
      'failures/away',
      'failures/full-disk',
      'execution-runs/machine-failures',
      'execution-runs/cancel',
      'execution-runs/waiting',
      'executor/model-db',
      'executor/scheduling',
      'operations/rounds',
      'workflows/temporal-page',
    ],
    askedBy: ['src/executor', 'src/embedded', 'src/operations', 'workflows'],
  },
  programs: {
    needs: 'chromium, montage',
    files: [
      'programs/endings',
      'programs/endings-real',
      'programs/messages',
      'programs/daemon',
      'programs/temporal-page',
      'examples/demo',
      'examples/demo-cold',
      'bench/command',
      'sites/remover',
      'drivers/driver-pool',
    ],
    askedBy: ['bin', 'src/main.ts', 'src/embedded', 'src/programs'],
  },
  images: {
    needs: 'root, docker.io, runc, debootstrap',
    files: ['image/fleet', 'image/image'],
    askedBy: ['Dockerfile', 'docker-compose.yml'],
  },
  fuzz: {
    needs: 'Python packages from their registry',
    files: [
      ...['api/whole-fuzz', 'api/whole-schemathesis', 'api/whole-bad-input', 'archives/archives'],
      'provenance/statements-many',
    ],
    askedBy: ['src/http', 'src/domains'],
  },
  bounds: {
    needs: 'a machine that does nothing else',
    files: [
      'clients/http-streams',
      'http/uploads',
      'api/provenance',
      'operations/slow-readers',
      'failures/watchers',
      'provenance/closure-deep',
      'provenance/lineage',
      'execution-runs/many-files',
      'executor/journal',
      'archives/earlier',
      'artifacts/layers',
    ],
    askedBy: [
      ...['src/http', 'src/clients', 'src/domains/provenance', 'src/db/migrations', 'src/executor'],
      'src/drivers/build',
    ],
  },
  data: {
    needs: '../shared, python3-simgrid, montage',
    files: [
      'shared/plans-big',
      'shared/traces',
      'shared/sample-runs',
      'execution-runs/predicted',
      'workflows/planning-session',
      'shared/workflow-definitions',
      'shared/workloads',
      'shared/simgrid-traces',
      'shared/simgrid-samples',
      'simulator/simgrid',
      'simulator/simgrid-workloads',
      'examples/mosaic-montage',
    ],
    askedBy: ['src/simulator', 'src/schedulers', 'src/domains/schedule-plans'],
  },
  bench: {
    needs: 'as slurm, containers, ssh; Python packages',
    files: ['bench/engine', 'bench/sites', 'bench/storage', 'examples/mosaic-measured'],
    askedBy: ['bench', 'examples'],
  },
  storages: {
    needs: 'root, radosgw, ceph-mon, ceph-osd, ceph-common, sshfs, user-mode-linux, as kubernetes',
    files: [
      'drivers/storage/ceph',
      'drivers/storage/s3-prefix',
      'drivers/storage/gcs',
      'drivers/storage/mount',
      'drivers/storage/nfs',
      'drivers/storage/pod',
      'drivers/storage/sftp',
      'drivers/storage/shell',
      'drivers/storage/wrappers',
      'storages/gcs',
      'storages/indexes',
      'storages/sites',
      'storages/straight',
      'storages/trouble',
      'failures/storage-jobs',
      'failures/storage-kills',
      'examples/storages',
    ],
    askedBy: ['src/domains/storages', 'src/drivers/storage', 'src/drivers/transfer', 'src/clients/s3'],
  },
  builds: {
    needs: 'root, docker.io, runc, debootstrap, docker-registry, skopeo, squashfs-tools, bubblewrap',
    files: [
      'artifacts/specifications',
      'artifacts/builds',
      'artifacts/definitions',
      'artifacts/deliveries',
      'artifacts/limits',
      'artifacts/records',
      'failures/artifact-kills',
      'failures/builds',
    ],
    askedBy: ['src/domains/artifacts', 'src/drivers/build'],
  },
  cloud: {
    needs: 'root, ansible-core, bubblewrap, debootstrap, faketime',
    files: [
      'api/cloud-configurations',
      'api/cloud-google',
      'api/cloud-instances',
      'api/cloud-trouble',
      'drivers/ansible',
      'execution-runs/cloud',
      'failures/cloud-away',
      'failures/cloud-clock',
      'failures/cloud-runs',
      'failures/clouds',
      'failures/playbooks',
      'sites/cloud-clients',
    ],
    askedBy: [
      'src/domains/cloud',
      'src/domains/machine-configurations',
      'src/drivers/ansible',
      'src/drivers/cloud',
      'src/drivers/runtime/cloud',
    ],
  },
  console: {
    needs: 'as ssh, slurm and kubernetes',
    files: [
      'api/console-commands',
      'api/console-kubernetes',
      'api/console-limits',
      'api/console-sessions',
      'api/console-slurm',
      'console/last-bytes',
      'failures/console',
      'failures/console-sites',
      'failures/console-ssh',
    ],
    askedBy: [
      'src/domains/console',
      'src/drivers/runtime/slurm',
      'src/drivers/runtime/kubernetes/terminal.ts',
    ],
  },
  mutations: { needs: 'nothing', files: ['mutations'], askedBy: ['src', 'workflows', 'activities'] },
  records: {
    needs: 'python3-venv, prometheus',
    files: [
      ...['api-clients/story', 'failures/records', 'observability/prometheus'],
      ...['provenance/crate-of-many', 'provenance/crates'],
    ],
    askedBy: ['clients', 'deploy', 'src/domains/instance', 'src/domains/provenance', 'src/observability'],
  },
}

/** The files of `all` that are proofs of the group. */
export const filesOfGroup = (name: string, all: readonly string[]): string[] => {
  const group = proofGroups[name]
  return all.filter((file) => group?.files.some((stem) => file === `test/${stem}.proof.test.ts`))
}
