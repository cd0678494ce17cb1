import { createPrivateKey, generateKeyPairSync, randomBytes, sign } from 'node:crypto'
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:https'
import { join } from 'node:path'
import { folderAt, run } from './ground.ts'
import type { Host } from './hosts.ts'
import { thriftyServer, startDaemon } from './kubernetes-daemon.ts'
import type { Daemon } from './kubernetes-daemon.ts'

/** The settings of a new control plane. */
export interface PlaneSettings {
  /** Folder of its files on this machine; the host sees it at the same path. */
  folder: string
  /** Folder of the programs. */
  programs: string
  /** Future nodes: each gets a certificate and an identity. */
  nodes: readonly { name: string; address: string }[]
  nodeGraceSeconds: number
  tolerationSeconds: number
}

export type KubernetesMethod = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

/** etcd, API server, controller manager and scheduler on one host. */
export interface Plane {
  readonly server: string
  readonly certificateAuthority: string
  /** The token of the user `admin`. */
  readonly adminToken: string
  /**
   * Folder of certificates and of a kubeconfig `<identity>.kubeconfig` for `admin`, `site`, `kwok`
   * and each `node-<name>`.
   */
  readonly pki: string
  /** One JSON object per line: all requests except those of the cluster's own parts. */
  readonly auditLog: string
  startStorage(): Promise<void>
  startApiServer(): Promise<void>
  killApiServer(): Promise<void>
  startControllers(): Promise<void>
  /** Nodes by kwok are those with the annotation `kwok.x-k8s.io/node: fake`. */
  startFakeNodes(): Promise<void>
  /**
   * Calls the API as the user `site`; PATCH is a server-side apply. @throws Error with the message
   * of the status unless 2xx
   */
  call(method: KubernetesMethod, path: string, body?: unknown): Promise<unknown>
  /** Deletes all earlier states of objects in etcd. */
  compact(): Promise<void>
  /** Signs a ServiceAccount's token without a request to the API. */
  sign(claims: Readonly<Record<string, unknown>>): string
}

/** Ranges outside of 10.64.0.0/10, which the hosts of sites use. */
const services = { range: '10.200.0.0/16', first: '10.200.0.1' }
const issuer = 'https://kubernetes.default.svc.cluster.local'

const certificates = `set -e
cd "$1"; shift
new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $new -keyout ca.key -out ca.crt -subj /CN=site-ca -days 30
while [ $# -gt 0 ]; do
  openssl req $new -keyout "$1.key" -out "$1.csr" -subj "$2"
  printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth,clientAuth\\n' "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" -extfile "$1.ext"
  shift 3
done`

/**
 * All requests are logged except those of the cluster's parts: they are many, and no test reads
 * them.
 */
const auditPolicy = {
  apiVersion: 'audit.k8s.io/v1',
  kind: 'Policy',
  omitStages: ['RequestReceived'],
  rules: [
    {
      level: 'None',
      users: ['system:apiserver', 'system:kube-controller-manager', 'system:kube-scheduler', 'site', 'kwok'],
    },
    { level: 'None', userGroups: ['system:nodes', 'system:serviceaccounts:kube-system'] },
    { level: 'Metadata' },
  ],
}

/** Writes identities and settings of a control plane; none of its programs runs yet. */
export const openPlane = async (host: Host, settings: PlaneSettings): Promise<Plane> => {
  const { folder, programs, nodes } = settings
  const pki = folderAt(join(folder, 'pki'), 0o700)
  const logs = folderAt(join(folder, 'log'))
  const server = `https://${host.address}:6443`
  const own = (file: string): string => join(pki, file)
  const names = `IP:127.0.0.1,IP:${host.address},IP:${services.first},DNS:localhost,DNS:kubernetes.default.svc`
  await run('/bin/sh', [
    ...['-c', certificates, 'certificates', pki],
    ...['api', '/CN=kube-apiserver', names],
    ...['kubelet-client', '/O=system:masters/CN=apiserver-kubelet-client', 'DNS:apiserver'],
    ...nodes.flatMap(({ name, address }) => [`kubelet-${name}`, `/CN=${name}`, `IP:${address},DNS:${name}`]),
  ])
  const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  writeFileSync(own('accounts.key'), privateKey.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 })
  writeFileSync(own('accounts.pub'), publicKey.export({ type: 'spki', format: 'pem' }))

  const certificateAuthority = readFileSync(own('ca.crt'), 'utf8')
  const identify = (file: string, user: string, group: string): string => {
    const token = randomBytes(24).toString('hex')
    appendFileSync(own('tokens.csv'), `${token},${user},${user},"${group}"\n`, { mode: 0o600 })
    writeFileSync(own(`${file}.kubeconfig`), kubeconfig(server, own('ca.crt'), token), { mode: 0o600 })
    return token
  }
  const adminToken = identify('admin', 'admin', 'system:masters')
  const siteToken = identify('site', 'site', 'system:masters')
  identify('kwok', 'kwok', 'system:masters')
  identify('controllers', 'system:kube-controller-manager', '')
  identify('scheduler', 'system:kube-scheduler', '')
  for (const { name } of nodes) identify(`node-${name}`, `system:node:${name}`, 'system:nodes')
  const auditLog = join(logs, 'audit.log')
  writeFileSync(auditLog, '')
  writeFileSync(own('audit-policy.json'), JSON.stringify(auditPolicy))
  writeFileSync(own('scheduler.json'), JSON.stringify(schedulerSettings(own('scheduler.kubeconfig'))))

  const agent = new Agent({ keepAlive: true, ca: certificateAuthority })
  const call = (method: KubernetesMethod, path: string, body?: unknown): Promise<unknown> => {
    const applies = method === 'PATCH'
    const url = new URL(applies ? `${path}?fieldManager=site&force=true` : path, server)
    const headers = {
      authorization: `Bearer ${siteToken}`,
      'content-type': applies ? 'application/apply-patch+yaml' : 'application/json',
    }
    return answerOf(url, { method, headers, agent, timeout: 60_000 }, body)
  }

  const storage = `http://${host.address}:2379`
  const askStorage = async (path: string, body: unknown): Promise<{ header: { revision: string } }> => {
    const answer = await fetch(`${storage}${path}`, {
      method: 'POST',
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(60_000),
    })
    if (!answer.ok) throw new Error(`etcd answers ${answer.status} to ${path}: ${await answer.text()}`)
    return (await answer.json()) as { header: { revision: string } }
  }
  const start = (log: string, program: string, ...args: string[]): Promise<Daemon> =>
    startDaemon(host, join(logs, `${log}.log`), [join(programs, program), ...args], thriftyServer)
  let apiServer: Daemon | undefined

  return {
    server,
    certificateAuthority,
    adminToken,
    pki,
    auditLog,
    call,
    startStorage: async () => {
      const peers = 'http://127.0.0.1:2380'
      const daemon = await start(
        'etcd',
        'etcd',
        // Its data is not needed after a crash of this machine.
        ...['--data-dir', join(folder, 'etcd'), '--unsafe-no-fsync', '--log-level', 'warn'],
        ...['--listen-client-urls', storage, '--advertise-client-urls', storage],
        ...[
          '--listen-peer-urls',
          peers,
          '--initial-advertise-peer-urls',
          peers,
          '--initial-cluster',
          `default=${peers}`,
        ],
      )
      await daemon.ready(() =>
        fetch(`${storage}/health`).then(
          ({ ok }) => ok,
          () => false,
        ),
      )
    },
    startApiServer: async () => {
      apiServer = await start(
        'apiserver',
        'kube-apiserver',
        ...[
          '--etcd-servers',
          storage,
          '--bind-address',
          '0.0.0.0',
          '--secure-port',
          '6443',
          '--advertise-address',
          host.address,
        ],
        ...['--cert-dir', pki, '--tls-cert-file', own('api.crt'), '--tls-private-key-file', own('api.key')],
        ...['--client-ca-file', own('ca.crt'), '--token-auth-file', own('tokens.csv')],
        ...['--service-cluster-ip-range', services.range, '--service-account-issuer', issuer],
        ...[
          '--service-account-key-file',
          own('accounts.pub'),
          '--service-account-signing-key-file',
          own('accounts.key'),
        ],
        ...[
          '--authorization-mode',
          'Node,RBAC',
          '--enable-admission-plugins',
          'NodeRestriction',
          '--allow-privileged=true',
        ],
        ...['--kubelet-preferred-address-types=InternalIP', '--kubelet-certificate-authority', own('ca.crt')],
        ...[
          '--kubelet-client-certificate',
          own('kubelet-client.crt'),
          '--kubelet-client-key',
          own('kubelet-client.key'),
        ],
        ...['--audit-policy-file', own('audit-policy.json'), '--audit-log-path', auditLog],
        `--default-not-ready-toleration-seconds=${settings.tolerationSeconds}`,
        `--default-unreachable-toleration-seconds=${settings.tolerationSeconds}`,
      )
      await apiServer.ready(() =>
        call('GET', '/readyz').then(
          () => true,
          () => false,
        ),
      )
    },
    killApiServer: async () => apiServer?.kill(),
    startControllers: async () => {
      const fast = ['--kube-api-qps', '1000', '--kube-api-burst', '2000']
      await Promise.all([
        start(
          'controllers',
          'kube-controller-manager',
          ...[
            '--kubeconfig',
            own('controllers.kubeconfig'),
            '--use-service-account-credentials',
            '--leader-elect=false',
            ...fast,
          ],
          ...[
            '--service-account-private-key-file',
            own('accounts.key'),
            '--root-ca-file',
            own('ca.crt'),
            '--secure-port',
            '0',
          ],
          ...['--concurrent-job-syncs', '20', '--node-monitor-grace-period', `${settings.nodeGraceSeconds}s`],
          ...['--node-monitor-period', '1s'],
          ...[
            '--controllers',
            '*,-node-ipam-controller,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller',
          ],
        ),
        start('scheduler', 'kube-scheduler', '--config', own('scheduler.json'), '--secure-port', '0'),
      ])
    },
    startFakeNodes: async () => {
      const stages = join(folder, 'stages.yaml')
      writeFileSync(stages, `${readFileSync(join(programs, 'stages.yaml'), 'utf8')}${fakeJobEnds}`)
      await start(
        'kwok',
        'kwok',
        ...[
          '--kubeconfig',
          own('kwok.kubeconfig'),
          '--config',
          stages,
          '--server-address',
          '127.0.0.1:10247',
        ],
        ...['--manage-all-nodes=false', '--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake'],
        ...['--node-lease-duration-seconds=40', '--v=WARN'],
      )
    },
    compact: async () => {
      const { header } = await askStorage('/v3/kv/range', { key: 'AA==', limit: '1' })
      await askStorage('/v3/kv/compaction', { revision: header.revision, physical: true })
    },
    sign: (claims) => {
      const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
      const text = `${encode({ alg: 'RS256', typ: 'JWT' })}.${encode({ iss: issuer, aud: [issuer], ...claims })}`
      const key = createPrivateKey(readFileSync(own('accounts.key')))
      return `${text}.${sign('sha256', Buffer.from(text), key).toString('base64url')}`
    },
  }
}

const answerOf = (
  url: URL,
  options: Parameters<typeof request>[1] & object,
  body: unknown,
): Promise<unknown> =>
  new Promise((resolve, reject) => {
    const asked = request(url, options, (answer) => {
      const parts: Buffer[] = []
      answer.on('data', (part: Buffer) => parts.push(part))
      answer.once('error', reject)
      answer.once('end', () => {
        const text = Buffer.concat(parts).toString()
        const status = answer.statusCode ?? 0
        if (status < 200 || status > 299)
          reject(
            new Error(
              `${options.method ?? 'GET'} ${url.pathname} is answered ${status}: ${text.slice(0, 2000)}`,
            ),
          )
        else resolve(text.startsWith('{') ? JSON.parse(text) : text)
      })
    })
    asked.once('error', reject)
    asked.once('timeout', () => asked.destroy(new Error(`${url.pathname} is not answered`)))
    asked.end(body === undefined ? undefined : JSON.stringify(body))
  })

const kubeconfig = (server: string, authority: string, token: string): string =>
  JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'site', cluster: { server, 'certificate-authority': authority } }],
    users: [{ name: 'user', user: { token } }],
    contexts: [{ name: 'site', context: { cluster: 'site', user: 'user', namespace: 'work' } }],
    'current-context': 'site',
  })

const schedulerSettings = (kubeconfigFile: string): unknown => ({
  apiVersion: 'kubescheduler.config.k8s.io/v1',
  kind: 'KubeSchedulerConfiguration',
  leaderElection: { leaderElect: false },
  clientConnection: { kubeconfig: kubeconfigFile, qps: 1000, burst: 2000 },
})

/** The end of a Job's Pod on a fake node: after `sim/time` with code `sim/exit`. */
const fakeJobEnds = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-complete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.metadata.ownerReferences.[].kind', operator: In, values: [Job]}
  delay: {durationMilliseconds: 0, durationFrom: {expressionFrom: '.metadata.annotations["sim/time"]'}}
  next:
    statusTemplate: |
      {{ $now := Now }}{{ $root := . }}{{ $x := or (index (or .metadata.annotations dict) "sim/exit") "0" }}
      containerStatuses:
      {{ range $i, $c := .spec.containers }}{{ $o := index $root.status.containerStatuses $i }}
      - {image: {{ $c.image | Quote }}, name: {{ $c.name | Quote }}, ready: false, restartCount: 0,
         started: false, state: {terminated: {exitCode: {{ $x }},
         startedAt: {{ $o.state.running.startedAt | Quote }}, finishedAt: {{ $now | Quote }},
         reason: {{ if eq $x "0" }}Completed{{ else }}Error{{ end }}}}}
      {{ end }}
      phase: {{ if eq $x "0" }}Succeeded{{ else }}Failed{{ end }}
`
