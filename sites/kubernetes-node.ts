import { spawn } from 'node:child_process'
import { existsSync, lstatSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { folderAt } from './ground.ts'
import type { Host } from './hosts.ts'
import { thriftyServer, startDaemon } from './kubernetes-daemon.ts'
import type { Daemon } from './kubernetes-daemon.ts'

/** The settings of a new node. */
export interface NodeSettings {
  /** Folder of the node's files on this machine; the host sees it at the same path. */
  folder: string
  /** Folder of the programs. */
  programs: string
  /** `ca.crt`, `kubelet-<name>.crt` and `.key`, `node-<name>.kubeconfig`. */
  pki: string
  /** Docker archives that its containerd gets before it is ready. */
  archives: readonly string[]
  /** Address of a registry that speaks plain HTTP. */
  registry: string
  /** The cgroup's name. No other kubelet of the machine uses it. */
  cgroup: string
  /** The node's number, from 1: its Pods have addresses in 10.201.<number>.0/24. */
  number: number
}

/** containerd and kubelet of one host. */
export interface NodePrograms {
  /** containerd with its images, where it is not running. */
  startRuntime(): Promise<void>
  /** Does not wait for the node to be Ready: kubelet retries until the API server answers. */
  startKubelet(): Promise<void>
  killKubelet(): Promise<void>
}

const socket = '/run/containerd.sock'

/**
 * kubelet writes these kernel settings where they differ. The kernel is the machine's, so kubelet
 * finds the values in files of the host instead.
 */
const kernelSettings: Readonly<Record<string, string>> = {
  'vm/overcommit_memory': '1',
  'vm/panic_on_oom': '0',
  'kernel/panic': '10',
  'kernel/panic_on_oops': '1',
  'kernel/keys/root_maxkeys': '1000000',
  'kernel/keys/root_maxbytes': '25000000',
}

/**
 * Mounts of a node's host: folders that Kubernetes uses at fixed paths and that two nodes of one
 * machine must not share.
 */
export const nodeMounts = (folder: string): Readonly<Record<string, string>> => ({
  '/var/lib': folderAt(join(folder, 'lib')),
  '/var/log': folderAt(join(folder, 'log')),
})

/** Writes the files that the programs of a node read. */
export const nodePrograms = (host: Host, settings: NodeSettings): NodePrograms => {
  const { folder, programs, pki } = settings
  const at = (name: string): string => join(folder, name)
  for (const name of ['cni', 'certs.d', 'manifests', 'kernel', 'containerd']) folderAt(at(name))
  writeFileSync(at('containerd.toml'), containerdSettings(folder))
  writeFileSync(at('cni/pods.conflist'), JSON.stringify(podNetwork(folder, settings.number)))
  writeFileSync(
    join(folderAt(at(`certs.d/${settings.registry}`)), 'hosts.toml'),
    `server = "http://${settings.registry}"\n[host."http://${settings.registry}"]\n`,
  )
  writeFileSync(at('kubelet.json'), JSON.stringify(kubeletSettings(host, settings)))
  for (const [name, value] of Object.entries(kernelSettings))
    writeFileSync(at(`kernel/${name.replaceAll('/', '.')}`), `${value}\n`)
  let runtime: Daemon | undefined
  let kubelet: Daemon | undefined
  const answers = (script: string) => async (): Promise<boolean> =>
    (await host.run(script, 'root', { mayFail: true })).code === 0
  return {
    startRuntime: async () => {
      if (await answers(`test -S ${socket}`)()) return
      const masks = Object.keys(kernelSettings).map(
        (name) => `mount --bind ${at(`kernel/${name.replaceAll('/', '.')}`)} /proc/sys/${name}`,
      )
      // crun refuses a machine that shows both kinds of cgroups, so the host hides the second kind.
      await host.run(
        [...masks, '{ ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; }'].join(
          ' && ',
        ),
      )
      // One rule for all Pods: as a part of each Pod's network it would start processes at each
      // Pod's start and end.
      await host.run(
        `iptables -t nat -A POSTROUTING -s ${podSubnet(settings.number)} ! -d ` +
          `${podSubnet(settings.number)} -j MASQUERADE`,
      )
      runtime = await startDaemon(host, at('containerd.log'), [
        'containerd',
        '--config',
        at('containerd.toml'),
      ])
      await runtime.ready(answers(`ctr -a ${socket} version >/dev/null 2>&1`))
      for (const archive of settings.archives)
        await host.run(`ctr -a ${socket} -n k8s.io images import ${archive} >/dev/null`)
    },
    startKubelet: async () => {
      const kubeconfig = join(pki, `node-${host.name}.kubeconfig`)
      kubelet = await startDaemon(
        host,
        at('kubelet.log'),
        [
          join(programs, 'kubelet'),
          ...[
            '--config',
            at('kubelet.json'),
            '--kubeconfig',
            kubeconfig,
            '--root-dir',
            '/var/lib/kubelet',
            '--cert-dir',
            at('manifests'),
          ],
          ...['--hostname-override', host.name, '--node-ip', host.address],
        ],
        thriftyServer,
      )
    },
    killKubelet: async () => kubelet?.kill(),
  }
}

const containerdSettings = (folder: string): string => `version = 2
root = "${folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "${socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "${folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local/pause:3.10"
  # A parent that may not lower its own score cannot give a lower one.
  restrict_oom_score_adj = true
  disable_apparmor = true
  max_concurrent_downloads = 8
  # A Pod starts a runtime eleven times: with crun it takes 0.37 s of a processor, with runc, a
  # program in Go, 0.42.
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "crun"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
        BinaryName = "/usr/bin/crun"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "${folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "${folder}/certs.d"
`

const podSubnet = (number: number): string => `10.201.${number}.0/24`

/**
 * Pods reach each other on their node and, under the node's address, every address that the node
 * reaches.
 */
const podNetwork = (folder: string, number: number): unknown => ({
  cniVersion: '0.4.0',
  name: 'pods',
  plugins: [
    {
      type: 'bridge',
      bridge: 'pods0',
      isGateway: true,
      ipam: {
        type: 'host-local',
        dataDir: `${folder}/addresses`,
        ranges: [[{ subnet: podSubnet(number), rangeStart: `10.201.${number}.10` }]],
        routes: [{ dst: '0.0.0.0/0' }],
      },
    },
  ],
})

const kubeletSettings = (host: Host, { folder, pki, cgroup }: NodeSettings): unknown => ({
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  containerRuntimeEndpoint: `unix://${socket}`,
  failCgroupV1: false,
  // Otherwise an imported image is pulled again once its id was pulled under another name.
  imagePullCredentialsVerificationPolicy: 'NeverVerify',
  address: host.address,
  port: 10250,
  healthzBindAddress: '127.0.0.1',
  tlsCertFile: join(pki, `kubelet-${host.name}.crt`),
  tlsPrivateKeyFile: join(pki, `kubelet-${host.name}.key`),
  authentication: {
    anonymous: { enabled: false },
    webhook: { enabled: true },
    x509: { clientCAFile: join(pki, 'ca.crt') },
  },
  authorization: { mode: 'Webhook' },
  cgroupDriver: 'cgroupfs',
  cgroupRoot: `/${cgroup}`,
  enforceNodeAllocatable: [],
  failSwapOn: false,
  oomScoreAdj: 0,
  makeIPTablesUtilChains: false,
  resolvConf: '/etc/resolv.conf',
  staticPodPath: join(folder, 'manifests'),
  podLogsDir: '/var/log/pods',
  volumePluginDir: join(folder, 'plugins'),
  // The disk is the machine's, and it may be fuller than a node's disk should be.
  evictionHard: {
    'memory.available': '50Mi',
    'nodefs.available': '1%',
    'imagefs.available': '1%',
    'nodefs.inodesFree': '1%',
  },
  imageGCHighThresholdPercent: 100,
  syncFrequency: '1s',
  nodeStatusUpdateFrequency: '2s',
  nodeStatusReportFrequency: '2s',
  nodeLeaseDurationSeconds: 20,
  maxPods: 200,
  serializeImagePulls: false,
  registryPullQPS: 0,
  eventRecordQPS: 0,
  kubeAPIQPS: 1000,
  kubeAPIBurst: 2000,
})

/** The folders of the machine's cgroups: one tree, or one for each controller. */
const cgroupTrees = (): string[] => {
  const root = '/sys/fs/cgroup'
  if (existsSync(join(root, 'cgroup.controllers'))) return [root]
  return readdirSync(root)
    .map((name) => join(root, name))
    .filter((path) => lstatSync(path).isDirectory())
}

/**
 * Removes the cgroups after their processes have ended, as soon as its standard input closes: at a
 * stop or at the death of this process.
 */
const cgroupRemover = `trap '' TERM INT HUP; read -r _; n=0
while [ $n -lt 100 ]; do
  left=; for group do [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || left=1; done
  [ -n "$left" ] || exit 0; n=$((n + 1)); sleep 0.1
done`

/** Cgroups of a site's kubelets. */
export interface Cgroups {
  /** Removes them; their processes have to end before. */
  leave(): Promise<void>
}

/**
 * Creates cgroups of these names in every tree. kubelet insists on its own: two that share the
 * default one would remove each other's Pods.
 */
export const openCgroups = (names: readonly string[]): Cgroups => {
  const trees = cgroupTrees()
  const folders = trees.flatMap((tree) => names.map((name) => join(tree, name)))
  const remover = spawn('/bin/sh', ['-c', cgroupRemover, 'cgroup-remover', ...folders], {
    cwd: '/',
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  const ended = new Promise<void>((resolve) => remover.once('exit', () => resolve()))
  for (const folder of folders) {
    mkdirSync(folder)
    // A new cpuset has no CPUs, and no process can run in it.
    for (const file of ['cpuset.cpus', 'cpuset.mems'])
      if (existsSync(join(folder, file)))
        writeFileSync(join(folder, file), readFileSync(join(dirname(folder), file)))
  }
  return {
    leave: async () => {
      remover.stdin.end()
      await ended
    },
  }
}
