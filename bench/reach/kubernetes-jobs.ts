import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { openKubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { openKubernetesDriver, openKubernetesShell } from '../../src/drivers/runtime/kubernetes/driver.ts'
import { kubernetesMissing, startKubernetes } from '../../sites/kubernetes.ts'
import { rootMissing } from '../needs.ts'
import type { Benchmark } from '../report.ts'
import { interleaved, median, medianRatio, secondsOf } from '../rounds.ts'

const fullCount = 200

/**
 * Short tasks as Jobs of a namespace, and their results: the driver of this service against a
 * user's script with kubectl.
 */
export const kubernetesJobs: Benchmark = {
  about:
    `${fullCount} short tasks in a Kubernetes namespace: time to all done, and requests to the API ` +
    'server, against a loop of kubectl create job and kubectl wait',
  missing: async () => rootMissing() ?? kubernetesMissing(),
  async run({ rounds, tiny }) {
    const count = tiny ? 4 : fullCount
    await using site = await startKubernetes()
    const token = await site.token()
    const { hostname: host, port } = new URL(site.server)
    const server = { host, port: Number(port), certificateAuthority: site.certificateAuthority }
    const cluster = openKubernetesCluster({
      ...server,
      token: () => Promise.resolve(token),
      addressAllowed: () => true,
    })
    const requests: Record<'Orrery' | 'loop', number[]> = { Orrery: [], loop: [] }
    let round = 0

    const counted = async (side: keyof typeof requests, work: () => Promise<void>): Promise<number> => {
      site.forgetRequests()
      const seconds = await secondsOf(work)
      requests[side].push(site.requests().length)
      await site.kubectl('delete', 'jobs', '--all', '--cascade=foreground')
      return seconds
    }
    const orrery = async (): Promise<void> => {
      const root = mkdtempSync(join(site.volume.folder, 'root-'))
      const ledger = join(root, 'ledger')
      const place = {
        cluster,
        namespace: site.namespace,
        runtime: 'jobs',
        configuration: {
          volume: { persistentVolumeClaim: site.volume.claim, mountPath: site.volume.folder },
          root,
          helperImage: site.images.gnu,
          overcommit: 40,
        },
      }
      const shell = openKubernetesShell(place)
      const driver = openKubernetesDriver({ ...place, shell, taskVariable: 'ORRERY_TASK' })
      try {
        const run = ++round
        const names = Array.from({ length: count }, (_, i) => `jobs-${run}-${i}`)
        const over = new Promise<void>((resolve) => {
          const left = new Set(names)
          driver.watch(names, (name) => {
            left.delete(name)
            if (left.size === 0) resolve()
          })
        })
        await driver.submit(
          names.map((name) => ({
            ...{
              name,
              directory: join(root, 'work', String(run), name, '1'),
              argv: ['sh', '-c', `echo ${name} >> ${ledger}`],
            },
            ...{
              environment: {},
              stage: [],
              expectedOutputs: [],
              cores: 1,
              memoryBytes: 0,
              timeoutSeconds: 0,
            },
          })),
        )
        await over
        for (const { state } of await Promise.all(names.map((name) => driver.collect(name))))
          if (state.state !== 'ended' || state.exitCode !== 0)
            throw new Error(`a task is ${JSON.stringify(state)}`)
        const noted = existsSync(ledger) ? readFileSync(ledger, 'utf8').trim().split('\n') : []
        if (noted.length !== count || new Set(noted).size !== count)
          throw new Error(`${count} tasks noted themselves ${noted.length} times`)
      } finally {
        await driver.close()
        await shell.close()
      }
    }
    const loop = async (): Promise<void> => {
      const run = ++round
      for (let i = 0; i < count; i++)
        await site.kubectl(
          'create',
          'job',
          `loop-${run}-${i}`,
          `--image=${site.images.gnu}`,
          '--',
          'sh',
          '-c',
          `echo loop-${run}-${i}`,
        )
      await site.kubectl('wait', '--for=condition=complete', 'job', '--all', '--timeout=900s')
    }
    try {
      const { cold, warm } = await interleaved(rounds, {
        Orrery: () => counted('Orrery', orrery),
        loop: () => counted('loop', loop),
      })
      const rows = (side: keyof typeof requests, name: string) => [
        { name: `${name}: to all done`, unit: 's', cold: cold[side], warm: warm[side] },
        {
          name: `${name}: requests to the API server`,
          unit: 'requests',
          cold: requests[side][0]!,
          warm: requests[side].slice(1),
        },
      ]
      return {
        sides: [...rows('Orrery', 'Orrery'), ...rows('loop', 'kubectl create job and wait')],
        goals: [
          {
            what: 'wall against the loop',
            unit: '×',
            measured: medianRatio(warm.Orrery, warm.loop),
            sense: 'most',
            goal: 1,
          },
          {
            what: 'requests against the loop',
            unit: '×',
            measured: median(requests.Orrery.slice(1)) / median(requests.loop.slice(1)),
            sense: 'most',
            goal: 0.1,
          },
        ],
        notes: [
          'requests are counted by the audit log of the API server, those of its own parts left out',
          'Orrery also stages, records, collects and lists outputs; each task noted itself once in ' +
            'a ledger. The loop runs one container a Job and nothing else',
          `one node of ${String(navigator.hardwareConcurrency)} cores`,
        ],
        versions: {
          Kubernetes:
            (await site.kubectl('version', '-o', 'json')).match(
              /"serverVersion"[\s\S]*?"gitVersion": "v([^"]+)"/,
            )?.[1] ?? 'unknown',
        },
      }
    } finally {
      cluster.close()
    }
  },
}
