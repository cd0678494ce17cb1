import { existsSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { neededRights } from '../src/drivers/runtime/kubernetes/rights.ts'
import { configFromEnvironment } from '../src/config.ts'
import { folderAt, openGround, run, until } from './ground.ts'
import type { Ground } from './ground.ts'
import { hostsMissing, openNetwork } from './hosts.ts'
import type { Host, SiteNetwork } from './hosts.ts'
import { buildKubernetes } from './kubernetes-build.ts'
import { kubernetesImages } from './kubernetes-images.ts'
import type { ImageArchives } from './kubernetes-images.ts'
import { nodeMounts, nodePrograms, openCgroups } from './kubernetes-node.ts'
import type { Cgroups } from './kubernetes-node.ts'
import { siteLacks } from './needs.ts'
import { openPlane } from './kubernetes-plane.ts'
import { startRegistry } from './registry.ts'
import type { Registry } from './registry.ts'

/** A real Kubernetes: see `startKubernetes`. */
export interface KubernetesOptions {
  /** Real nodes `node1`, `node2` …, each a host with containerd and kubelet. Default 1. */
  nodes?: number
  /** Their names, for tests that depend on names. */
  nodeNames?: readonly string[]
  /**
   * Nodes by kwok, `f0000` …: 32 CPUs, 110 Pods, label `type=kwok`, taint
   * `kwok.x-k8s.io/node:NoSchedule`. A Job's Pods there run for the Pod annotation `sim/time`
   * (`0s`) and end with the exit code `sim/exit` (`0`); they have no logs. Default 0.
   */
  fakeNodes?: number
  /**
   * Seconds without a heartbeat after which a node is NotReady. The default is 30, because a loaded
   * machine causes false alarms.
   */
  nodeGraceSeconds?: number
  /**
   * Seconds that a Pod stays on a node that is NotReady or unreachable before it is evicted;
   * default 3 (Kubernetes': 300).
   */
  tolerationSeconds?: number
  /** The rights of the account `orrery` in the namespace; default `namespaceRights`. */
  rights?: readonly Right[]
}

/** A rule of a Role. */
export interface Right {
  apiGroups: readonly string[]
  resources: readonly string[]
  verbs: readonly string[]
}

/**
 * One request at the API server, except those of its own parts (kubelets, controllers, scheduler,
 * kwok, this site).
 */
export interface ApiRequest {
  /** In RBAC's terms: `get`, `list`, `watch`, `create`, `patch`, … */
  verb: string
  /**
   * `admin`, or `system:serviceaccount:<namespace>:<account>`; `system:anonymous` or empty for a
   * refused login.
   */
  user: string
  userAgent: string
  /** `jobs`, `pods`, `pods/log`, …; empty for paths outside of resources such as `/version`. */
  resource: string
  namespace: string
  uri: string
  /** The HTTP status; an open watch has 200. */
  code: number
}

export interface KubernetesNode extends Host {
  /**
   * Kills kubelet without a warning; its containers run on. For the whole node: `crash()`, or
   * `cut()` for its network.
   */
  killKubelet(): Promise<void>
  /**
   * Starts kubelet (and containerd where it is not running): after `killKubelet()`, or after
   * `boot()`. Resolves when the node is Ready.
   */
  startKubelet(): Promise<void>
}

export interface KubernetesSite extends AsyncDisposable {
  readonly folder: string
  /** `https://<address>:6443`, reachable from this machine and from Pods. */
  readonly server: string
  /** PEM. */
  readonly certificateAuthority: string
  /** A namespace made for the test. Its default ServiceAccount exists. */
  readonly namespace: string
  /** The token of the user `admin`, a cluster administrator. */
  readonly adminToken: string
  /**
   * A token of a ServiceAccount of the namespace; default `orrery`, which has only `rights` there
   * and `clusterRights`. The API issues it by TokenRequest. The API issues none for less than 600
   * seconds, so such a token is signed here (0 or less: expired already). The API server caches for
   * 10 s that a token was valid.
   */
  token(account?: string, seconds?: number): Promise<string>
  /**
   * Revokes a token of 600 seconds or more. Resolves when the API refuses it: after half a second
   * if the token was not used, else after 10 s.
   */
  revokeToken(token: string): Promise<void>
  /**
   * Creates (or changes) a ServiceAccount of the namespace with these rights in it and none
   * elsewhere.
   */
  account(name: string, rights: readonly Right[]): Promise<void>
  /** A kubeconfig file of `admin` with the namespace as default. */
  readonly kubeconfig: string
  /** Runs kubectl as `admin`. @returns its standard output @throws Error with its output */
  kubectl(...args: string[]): Promise<string>
  /**
   * Calls the API as the site itself, not counted in `requests()`. @returns the answer's JSON
   * @throws Error with the message of the status unless 2xx
   */
  call(method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE', path: string, body?: unknown): Promise<unknown>
  /**
   * Images on every node; use them with `imagePullPolicy: IfNotPresent` (the default for a tag
   * other than `latest`). `busybox`: sh, setsid, env, find and its other tools, PATH=/bin. `gnu`:
   * bash, coreutils, findutils, grep, sed, tar, gzip, util-linux, perl.
   */
  readonly images: {
    readonly busybox: 'local/bb:1'
    readonly gnu: 'local/gnu:1'
    readonly pause: 'local/pause:3.10'
  }
  /**
   * PersistentVolumeClaim `work` of the namespace (ReadWriteMany), on every real node; `folder` is
   * its path on this machine.
   */
  readonly volume: { readonly claim: 'work'; readonly folder: string }
  /**
   * The cluster's registry, plain HTTP; its nodes are configured for that. It has busybox as
   * `<registry.address>/bb:1`.
   */
  readonly registry: Registry
  /** The real nodes. */
  readonly nodes: readonly KubernetesNode[]
  /** Names of the cgroups that their Pods live in, in every tree of this machine. */
  readonly cgroups: readonly string[]
  /**
   * `kubectl drain`: cordons the node and evicts all Pods; resolves when it is done. `uncordon`
   * reverts it.
   */
  drain(node: string): Promise<void>
  uncordon(node: string): Promise<void>
  /** Evicts a Pod of the namespace by the API's eviction. */
  evict(pod: string): Promise<void>
  /** Resolves when the API server is gone; connections to it are refused. */
  killApiServer(): Promise<void>
  /** Resolves when the API server is ready. */
  startApiServer(): Promise<void>
  restartApiServer(): Promise<void>
  /**
   * Deletes the history of all objects: etcd is compacted, and the API server restarts, because its
   * cache would still hold the history. A watch or list from an earlier resourceVersion is answered
   * 410 (Expired).
   */
  compactEtcd(): Promise<void>
  /**
   * The namespace's only ResourceQuota, `limit`, e.g. `{ 'count/jobs.batch': '2', 'requests.cpu':
   * '1' }`; undefined removes it. It is in force when this resolves.
   */
  setQuota(hard: Readonly<Record<string, string>> | undefined): Promise<void>
  /** Requests at the API server since the start or `forgetRequests()`. */
  requests(): ApiRequest[]
  forgetRequests(): void
  stop(): Promise<void>
}

/**
 * The rights that the documentation asks a user to grant the daemon's ServiceAccount in the
 * namespace of its Jobs: those that the driver requires, and those that it and discovery use for
 * further facts.
 */
export const namespaceRights: readonly Right[] = [
  ...neededRights.map(([group, resource, verbs]) => ({ apiGroups: [group], resources: [resource], verbs })),
  { apiGroups: [''], resources: ['pods/log'], verbs: ['get'] },
  {
    apiGroups: [''],
    resources: ['persistentvolumeclaims', 'resourcequotas', 'limitranges', 'events'],
    verbs: ['get', 'list'],
  },
]

/** The rights in the whole cluster, for discovery. */
export const clusterRights: readonly Right[] = [
  { apiGroups: [''], resources: ['nodes', 'namespaces'], verbs: ['get', 'list'] },
  { apiGroups: ['storage.k8s.io'], resources: ['storageclasses'], verbs: ['get', 'list'] },
]

/** The lacks of this machine for the site, as text; undefined where there is none. */
export const kubernetesMissing = async (): Promise<string | undefined> => {
  const lacks = siteLacks({ kind: 'kubernetes' })
  if (lacks !== undefined) return lacks
  return hostsMissing()
}

/**
 * Starts a cluster: a host with etcd, API server, controller manager, scheduler and registry, and
 * hosts with containerd and kubelet, on a switch of their own. The cluster has no DNS and no
 * Service: Pods reach addresses. Everything ends with `stop()` and with the calling process, also
 * when that is killed. The programs are built where the cache lacks them (4 minutes on two idle
 * cores).
 *
 * @throws Error naming what the machine lacks
 */
export const startKubernetes = async (options: KubernetesOptions = {}): Promise<KubernetesSite> => {
  const missing = await kubernetesMissing()
  if (missing !== undefined) throw new Error(`Kubernetes cannot be had: ${missing}`)
  const { cacheDir } = configFromEnvironment()
  const [programs, archives] = await Promise.all([buildKubernetes(), kubernetesImages(cacheDir)])
  const ground = openGround('kubernetes')
  let network: SiteNetwork | undefined
  const nodeNames =
    options.nodeNames ?? Array.from({ length: options.nodes ?? 1 }, (_, index) => `node${index + 1}`)
  const cgroups = openCgroups(nodeNames.map((name) => cgroupOf(ground, name)))
  try {
    network = await openNetwork(ground, { name: 'ada', shell: '/bin/sh' })
    return await open(ground, network, cgroups, { programs, archives, nodeNames }, options)
  } catch (error) {
    await network?.close()
    await cgroups.leave()
    await ground.leave()
    throw error
  }
}

interface Parts {
  nodeNames: readonly string[]
  programs: string
  archives: ImageArchives
}

const cgroupOf = (ground: Ground, node: string): string => `orrery-${ground.token}-${node}`

const namespace = 'work'
const inNamespace = `/api/v1/namespaces/${namespace}`

const open = async (
  ground: Ground,
  network: SiteNetwork,
  cgroups: Cgroups,
  { programs, archives, nodeNames }: Parts,
  options: KubernetesOptions,
): Promise<KubernetesSite> => {
  const { folder } = ground
  const shared = folderAt(join(folder, 'shared'))
  const workFolder = folderAt(join(shared, 'work'), 0o777)
  const control = await network.add('control', { diskMiB: 64, sharesTmp: true })
  const hosts = await Promise.all(
    nodeNames.map((name) => {
      const mounts = { '/srv': shared, ...nodeMounts(join(folder, name)) }
      return network.add(name, { diskMiB: 64, sharesTmp: true, mounts })
    }),
  )
  const plane = await openPlane(control, {
    folder: folderAt(join(folder, 'plane')),
    programs,
    nodes: hosts,
    nodeGraceSeconds: options.nodeGraceSeconds ?? 30,
    tolerationSeconds: options.tolerationSeconds ?? 3,
  })
  const machines = hosts.map((host, index) => ({
    host,
    programs: nodePrograms(host, {
      folder: join(folder, host.name),
      programs,
      pki: plane.pki,
      archives: Object.values(archives) as string[],
      registry: `${control.address}:5000`,
      cgroup: cgroupOf(ground, host.name),
      number: index + 1,
    }),
  }))
  const { call } = plane
  const [registry] = await Promise.all([
    startRegistry(control, join(folder, 'registry')).then(async (started) => {
      await started.push(archives.busybox, 'bb:1')
      return started
    }),
    plane.startStorage().then(() => plane.startApiServer()),
    ...machines.map((machine) => machine.programs.startRuntime()),
  ])
  await plane.startControllers()

  /** Whether kubelet has reported the node's health since `sinceMs`. */
  const isReady = async (name: string, sinceMs: number): Promise<boolean> => {
    const node = await (call('GET', `/api/v1/nodes/${name}`) as Promise<Node>).catch(() => undefined)
    const health = node?.status.conditions?.find(({ type }) => type === 'Ready')
    // While the taint of an absent node remains, new Pods are evicted soon.
    const absent =
      node?.spec.taints?.some(({ key }) => /^node.kubernetes.io\/(not-ready|unreachable)$/.test(key)) ?? false
    // Kubernetes' times have no fractions of a second.
    return health?.status === 'True' && !absent && Date.parse(health.lastHeartbeatTime) >= sinceMs - 1000
  }
  const nodes = machines.map(
    ({ host, programs: { startRuntime, startKubelet, killKubelet } }): KubernetesNode =>
      Object.assign(host, {
        killKubelet,
        startKubelet: async () => {
          const since = Date.now()
          await startRuntime()
          await startKubelet()
          await until(
            `${host.name} is Ready`,
            () => isReady(host.name, since),
            wordsOf(join(folder, host.name, 'kubelet.log')),
          )
        },
      }),
  )
  const account = async (name: string, rights: readonly Right[]): Promise<void> => {
    const metadata = { name, namespace }
    await call('PATCH', `${inNamespace}/serviceaccounts/${name}`, {
      apiVersion: 'v1',
      kind: 'ServiceAccount',
      metadata,
    })
    const roles = `/apis/rbac.authorization.k8s.io/v1/namespaces/${namespace}`
    await call('PATCH', `${roles}/roles/${name}`, { ...rbac('Role'), metadata, rules: rights })
    await call('PATCH', `${roles}/rolebindings/${name}`, {
      ...rbac('RoleBinding'),
      metadata,
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name },
      subjects: [{ kind: 'ServiceAccount', name, namespace }],
    })
  }
  const furnish = async (): Promise<void> => {
    await call('PATCH', `/api/v1/namespaces/${namespace}`, {
      apiVersion: 'v1',
      kind: 'Namespace',
      metadata: { name: namespace },
    })
    await call('PATCH', '/api/v1/persistentvolumes/work', persistentVolume)
    await call('PATCH', `${inNamespace}/persistentvolumeclaims/work`, persistentVolumeClaim)
    await account('orrery', options.rights ?? namespaceRights)
    const clusterRoles = '/apis/rbac.authorization.k8s.io/v1'
    const metadata = { name: 'orrery' }
    await call('PATCH', `${clusterRoles}/clusterroles/orrery`, {
      ...rbac('ClusterRole'),
      metadata,
      rules: clusterRights,
    })
    await call('PATCH', `${clusterRoles}/clusterrolebindings/orrery`, {
      ...rbac('ClusterRoleBinding'),
      metadata,
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'orrery' },
      subjects: [{ kind: 'ServiceAccount', name: 'orrery', namespace }],
    })
    const isThere = (path: string, suits: (object: Claim) => boolean) => (): Promise<boolean> =>
      (call('GET', path) as Promise<Claim>).then(suits, () => false)
    await until(
      "the namespace's own account",
      isThere(`${inNamespace}/serviceaccounts/default`, () => true),
    )
    await until(
      'the volume is bound',
      isThere(`${inNamespace}/persistentvolumeclaims/work`, ({ status }) => status?.phase === 'Bound'),
    )
  }
  const fake = options.fakeNodes ?? 0
  const addFakeNodes = async (): Promise<void> => {
    if (fake === 0) return
    await plane.startFakeNodes()
    for (let first = 0; first < fake; first += 50)
      await Promise.all(
        Array.from({ length: Math.min(50, fake - first) }, (_, index) =>
          call('POST', '/api/v1/nodes', fakeNode(first + index)),
        ),
      )
    await until('the fake nodes are Ready', async () => {
      const { items } = (await call('GET', '/api/v1/nodes?labelSelector=type%3Dkwok')) as { items: Node[] }
      return (
        items.filter(({ status }) =>
          status.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True'),
        ).length === fake
      )
    })
  }
  await Promise.all([furnish(), addFakeNodes(), ...nodes.map((node) => node.startKubelet())])

  const kubectlAs = async (identity: 'admin' | 'site', args: readonly string[]): Promise<string> => {
    const environment = { KUBECONFIG: join(plane.pki, `${identity}.kubeconfig`), HOME: folder }
    return (await run(join(programs, 'kubectl'), args, { environment, deadlineMs: 300_000 })).stdout
  }
  const restartApiServer = async (): Promise<void> => {
    await plane.killApiServer()
    await plane.startApiServer()
  }
  let forgotten = 0
  const stop = async (): Promise<void> => {
    await network.close()
    await cgroups.leave()
    await ground.leave()
  }
  return {
    folder,
    server: plane.server,
    certificateAuthority: plane.certificateAuthority,
    namespace,
    adminToken: plane.adminToken,
    token: async (name = 'orrery', seconds = 3600) => {
      if (seconds < 600) {
        const { metadata } = (await call('GET', `${inNamespace}/serviceaccounts/${name}`)) as {
          metadata: { uid: string }
        }
        const now = Math.floor(Date.now() / 1000)
        return plane.sign({
          ...{
            iat: now - 3600,
            nbf: now - 3600,
            exp: now + seconds,
            sub: `system:serviceaccount:${namespace}:${name}`,
          },
          'kubernetes.io': { namespace, serviceaccount: { name, uid: metadata.uid } },
        })
      }
      // A token lives as long as the object that it is bound to, so the object's deletion revokes
      // it.
      const bond = { apiVersion: 'v1', kind: 'Secret', metadata: { generateName: 'token-', namespace } }
      const { metadata } = (await call('POST', `${inNamespace}/secrets`, bond)) as {
        metadata: { name: string }
      }
      const { status } = (await call('POST', `${inNamespace}/serviceaccounts/${name}/token`, {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'TokenRequest',
        spec: {
          expirationSeconds: seconds,
          boundObjectRef: { apiVersion: 'v1', kind: 'Secret', name: metadata.name },
        },
      })) as { status: { token: string } }
      return status.token
    },
    revokeToken: async (token) => {
      const claims = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as TokenClaims
      const bond = claims['kubernetes.io']?.secret?.name
      if (bond === undefined)
        throw new Error('only a token that was asked for 600 seconds or more can be revoked')
      await call('DELETE', `${inNamespace}/secrets/${bond}`)
      // A review before the API server has processed the deletion would return true, and the cache
      // would repeat that for 10 s.
      await sleep(500)
      const review = { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenReview', spec: { token } }
      await until('the token is refused', async () => {
        const { status } = (await call('POST', '/apis/authentication.k8s.io/v1/tokenreviews', review)) as {
          status: { authenticated?: boolean }
        }
        return status.authenticated !== true
      })
    },
    account,
    kubeconfig: join(plane.pki, 'admin.kubeconfig'),
    kubectl: (...args) => kubectlAs('admin', args),
    call,
    images: { busybox: 'local/bb:1', gnu: 'local/gnu:1', pause: 'local/pause:3.10' },
    volume: { claim: 'work', folder: workFolder },
    registry,
    nodes,
    cgroups: hosts.map(({ name }) => cgroupOf(ground, name)),
    drain: async (node) => {
      await kubectlAs('site', [
        'drain',
        node,
        '--ignore-daemonsets',
        '--delete-emptydir-data',
        '--force',
        '--timeout=240s',
      ])
    },
    uncordon: async (node) => {
      await kubectlAs('site', ['uncordon', node])
    },
    evict: async (pod) => {
      await call('POST', `${inNamespace}/pods/${pod}/eviction`, {
        ...{ apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name: pod, namespace } },
      })
    },
    killApiServer: plane.killApiServer,
    startApiServer: plane.startApiServer,
    restartApiServer,
    compactEtcd: async () => {
      // One more write makes every version that a client has seen an earlier one.
      const data = { at: new Date().toISOString() }
      await call('PATCH', '/api/v1/namespaces/default/configmaps/site', {
        ...{ apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'site' } },
        data,
      })
      await plane.killApiServer()
      await plane.compact()
      await plane.startApiServer()
    },
    setQuota: async (hard) => {
      const path = `${inNamespace}/resourcequotas/limit`
      if (hard === undefined) await call('DELETE', path)
      else {
        await call('PATCH', path, { ...quota('limit'), spec: { hard } })
        await until('the quota has been counted', async () => {
          const { status } = (await call('GET', path)) as { status?: { hard?: Record<string, string> } }
          return isDeepStrictEqual(status?.hard, hard)
        })
      }
      // Admission reads quotas late, but in order: once it enforces one that forbids leases, it
      // enforces the earlier ones too.
      const lease = {
        apiVersion: 'coordination.k8s.io/v1',
        kind: 'Lease',
        metadata: { name: 'probe', namespace },
      }
      await call('PATCH', `${inNamespace}/resourcequotas/probe`, {
        ...quota('probe'),
        spec: { hard: { 'count/leases.coordination.k8s.io': '0' } },
      })
      await until('the quota is in force', () =>
        call('POST', `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases?dryRun=All`, lease).then(
          () => false,
          (error: unknown) => String(error).includes('quota: probe'),
        ),
      )
      await call('DELETE', `${inNamespace}/resourcequotas/probe`)
    },
    requests: () => apiRequests(readFileSync(plane.auditLog).subarray(forgotten).toString()),
    forgetRequests: () => (forgotten = statSync(plane.auditLog).size),
    stop,
    [Symbol.asyncDispose]: stop,
  }
}

interface Node {
  spec: { taints?: { key: string }[] }
  status: { conditions?: { type: string; status: string; lastHeartbeatTime: string }[] }
}
interface Claim {
  status?: { phase?: string }
}
interface TokenClaims {
  'kubernetes.io'?: { secret?: { name: string } }
}

const rbac = (kind: string): { apiVersion: string; kind: string } => ({
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind,
})

const quota = (
  name: string,
): { apiVersion: string; kind: string; metadata: { name: string; namespace: string } } => ({
  apiVersion: 'v1',
  kind: 'ResourceQuota',
  metadata: { name, namespace },
})

const volumeSize = { accessModes: ['ReadWriteMany'], storageClassName: '' }
const persistentVolume = {
  apiVersion: 'v1',
  kind: 'PersistentVolume',
  metadata: { name: 'work' },
  spec: {
    ...volumeSize,
    capacity: { storage: '10Gi' },
    hostPath: { path: '/srv/work', type: 'Directory' },
    claimRef: { name: 'work', namespace },
  },
}
const persistentVolumeClaim = {
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  metadata: { name: 'work', namespace },
  spec: { ...volumeSize, volumeName: 'work', resources: { requests: { storage: '10Gi' } } },
}

const fakeNode = (index: number): unknown => {
  const capacity = { cpu: '32', memory: '256Gi', pods: '110' }
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name: `f${String(index).padStart(4, '0')}`,
      annotations: { 'kwok.x-k8s.io/node': 'fake' },
      labels: { type: 'kwok' },
    },
    spec: { taints: [{ key: 'kwok.x-k8s.io/node', value: 'fake', effect: 'NoSchedule' }] },
    status: { capacity, allocatable: capacity },
  }
}

interface AuditEvent {
  auditID: string
  verb: string
  requestURI: string
  userAgent?: string
  user?: { username?: string }
  objectRef?: { resource?: string; subresource?: string; namespace?: string }
  responseStatus?: { code?: number }
}

/** A watch has two lines, at its begin and at its end; an incomplete line is left out. */
const apiRequests = (log: string): ApiRequest[] => {
  const byId = new Map<string, ApiRequest>()
  for (const line of log
    .slice(0, log.lastIndexOf('\n') + 1)
    .split('\n')
    .filter((text) => text !== '')) {
    const event = JSON.parse(line) as AuditEvent
    const { resource = '', subresource, namespace: place = '' } = event.objectRef ?? {}
    byId.set(event.auditID, {
      verb: event.verb,
      user: event.user?.username ?? '',
      userAgent: event.userAgent ?? '',
      resource: subresource === undefined ? resource : `${resource}/${subresource}`,
      namespace: place,
      uri: event.requestURI,
      code: event.responseStatus?.code ?? 0,
    })
  }
  return [...byId.values()]
}

const wordsOf = (file: string) => (): string =>
  existsSync(file) ? readFileSync(file, 'utf8').slice(-3000) : ''
