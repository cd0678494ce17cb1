import { expect } from '@jest/globals'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ClusterRequest, KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { KubernetesError } from '../../src/clients/kubernetes.ts'
import type { Intent, TaskState } from '../../src/drivers/runtime/contract/driver.ts'
import { missingRights } from '../../src/drivers/runtime/kubernetes/rights.ts'
import type { RootedDriver } from '../../src/drivers/runtime/contract/rooted.ts'
import { playPods } from '../failures/pods.ts'
import { namespaceRights, startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { toolImage } from './kubernetes-image.ts'
import {
  becomes,
  changePods,
  clusterOf,
  minutes,
  openRuntime,
  over,
  podOf,
  sh,
  stateOf,
  submit,
  until,
  type OpenedRuntime,
} from './kubernetes-site.ts'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, afterEach, beforeAll, describe, test } = needs(...sites.kubernetes)

/** What happens at real clusters, done to a real one. */

let site: KubernetesSite
let helperImage: string
const closing: (() => Promise<unknown>)[] = []

beforeAll(async () => {
  site = await startKubernetes({ nodes: 2, fakeNodes: 50 })
  helperImage = await toolImage(site)
}, kubernetesStartMs)
afterAll(() => site?.stop(), 2 * minutes)
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
}, minutes)

const clusterWith = (
  token: () => Promise<string>,
  more: { certificateAuthority?: string } = {},
): KubernetesCluster => {
  const cluster = clusterOf(site, token, more)
  closing.push(async () => cluster.close())
  return cluster
}

const open = async (
  configuration: Record<string, unknown> = {},
  more: { cluster?: KubernetesCluster; namespace?: string; runtime?: string } = {},
): Promise<OpenedRuntime> => {
  const token = await site.token()
  const opened = openRuntime(more.cluster ?? clusterOf(site, () => Promise.resolve(token)), {
    namespace: more.namespace ?? site.namespace,
    runtime: more.runtime ?? 'failures',
    configuration: {
      volume: { persistentVolumeClaim: site.volume.claim, mountPath: site.volume.folder },
      root: mkdtempSync(join(site.volume.folder, 'root-')),
      helperImage,
      nodeLostSeconds: 3,
      ...configuration,
    },
  })
  closing.push(opened.close)
  return opened
}

const running = (driver: RootedDriver, intent: Intent): Promise<TaskState> =>
  becomes(driver, intent, 'running')
const lost = (driver: RootedDriver, intent: Intent, seconds?: number): Promise<TaskState> =>
  becomes(driver, intent, 'lost', seconds)
const waits = (driver: RootedDriver, intent: Intent, words = /./): Promise<TaskState> =>
  becomes(driver, intent, (state) => state.state === 'queued' && words.test(state.cause ?? ''))

describe('what the cluster takes away', () => {
  test(
    'an evicted Pod: the task is lost, in the words of the cluster, and is not run again by the Job',
    async () => {
      const { driver, intent, root } = await open()
      const ledger = join(root, 'ledger')
      const task = intent(sh('echo x >> "$1"; exec sleep 600', ledger))
      const [id = ''] = await submit(driver, task)
      const end = over(driver, task)
      await running(driver, task)
      await site.evict((await podOf(site, id)).name)
      await end
      expect(await stateOf(driver, task)).toMatchObject({
        state: 'lost',
        externalId: id,
        cause: expect.stringContaining('Eviction'),
      })
      await sleep(3000)
      expect(readFileSync(ledger, 'utf8')).toBe('x\n')
    },
    3 * minutes,
  )

  test(
    'a Pod that somebody deleted, and a Job that somebody deleted',
    async () => {
      const { driver, intent } = await open()
      const [one, two] = [intent(['sleep', '600']), intent(['sleep', '600'], { memoryBytes: 64 * 1024 ** 2 })]
      const [first = '', second = ''] = await submit(driver, one, two)
      await running(driver, one)
      await running(driver, two)
      await site.kubectl('delete', 'pod', (await podOf(site, first)).name, '--grace-period=1', '--wait=false')
      await site.kubectl('delete', 'job', second.replace(/-\d+$/, ''), '--wait=false')
      expect(await lost(driver, one)).toMatchObject({ cause: expect.stringContaining('deleted') })
      expect(await lost(driver, two)).toMatchObject({ cause: expect.stringContaining('deleted') })
    },
    3 * minutes,
  )

  test(
    'a Pod that lists lack, and a Job that they lack: the task is waited for, ends by its record, and runs once',
    async () => {
      const { driver, intent, root } = await open({}, { runtime: 'unlisted' })
      const [ledger, gate] = [join(root, 'ledger'), join(root, 'gate')]
      const script = 'echo x >> "$1"; until [ -e "$2" ]; do sleep 0.1; done; exit 3'
      const task = intent(sh(script, ledger, gate))
      const [id = ''] = await submit(driver, task)
      await running(driver, task)
      const pod = (await podOf(site, id)).name
      const waits = ({ state, cause }: { state: string; cause?: string }): boolean =>
        state === 'running' && cause?.includes('lists no Pod') === true
      await site.kubectl('label', 'pod', pod, 'orrery.dev/runtime-')
      await becomes(driver, task, waits)
      await site.kubectl('label', 'job', id.replace(/-\d+$/, ''), 'orrery.dev/runtime-')
      await sleep(10_000)
      expect(await becomes(driver, task, waits)).toMatchObject({ externalId: id })
      expect(await submit(driver, task)).toEqual([id])
      writeFileSync(gate, '')
      await over(driver, task)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', exitCode: 3 })
      expect(readFileSync(ledger, 'utf8')).toBe('x\n')
    },
    3 * minutes,
  )

  test(
    'a Pod that its Job has let go, and replaced: the task is waited for, and runs once',
    async () => {
      const { driver, intent, root } = await open({ settleSeconds: 1 }, { runtime: 'replaced' })
      const [ledger, gate] = [join(root, 'ledger'), join(root, 'gate')]
      const script = 'echo x >> "$1"; until [ -e "$2" ]; do sleep 0.1; done; exit 3'
      const task = intent(sh(script, ledger, gate))
      const [id = ''] = await submit(driver, task)
      await running(driver, task)
      const { name } = await podOf(site, id)
      await site.kubectl('label', 'pod', name, 'batch.kubernetes.io/controller-uid-', 'controller-uid-')
      const ours = `batch.kubernetes.io/job-name=${id.replace(/-\d+$/, '')}`
      const phases = '{range .items[*]}{.metadata.name} {.status.phase}{"\\n"}{end}'
      await until('the end of another Pod', async () =>
        (await site.kubectl('get', 'pods', '-l', ours, '-o', `jsonpath=${phases}`))
          .split('\n')
          .some((line) => !line.startsWith(`${name} `) && line.endsWith(' Succeeded')),
      )
      await sleep(5000)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'running' })
      writeFileSync(gate, '')
      await over(driver, task)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', exitCode: 3 })
      expect(readFileSync(ledger, 'utf8')).toBe('x\n')
    },
    3 * minutes,
  )

  test(
    'a drained node: its tasks are lost, the keeper comes back elsewhere, and the next ones run there',
    async () => {
      const { driver, shell, intent } = await open({}, { runtime: 'drained' })
      const task = intent(['sleep', '600'])
      const [id = ''] = await submit(driver, task)
      await running(driver, task)
      const nodes = new Set([(await podOf(site, id)).node])
      const text = await site.kubectl(
        'get',
        'pods',
        '-l',
        'orrery.dev/part=keeper',
        '-o',
        'jsonpath={.items[*].spec.nodeName}',
      )
      for (const node of text.split(' ')) nodes.add(node)
      // With both in use, the one of the task.
      const [node = ''] = nodes
      await site.drain(node)
      try {
        expect(await lost(driver, task)).toMatchObject({ cause: expect.stringContaining('Eviction') })
        expect((await shell.run('echo here')).stdout.toString()).toBe('here\n')
        const next = intent(['true'])
        await submit(driver, next)
        await over(driver, next)
        const { node: where } = await driver.collect(next.name)
        expect(where).not.toBe(node)
      } finally {
        await site.uncordon(node)
      }
    },
    5 * minutes,
  )

  test(
    'memory beyond the plan: ended for memory',
    async () => {
      const { driver, intent } = await open()
      const task = intent(sh('exec tail /dev/zero'), { memoryBytes: 48 * 1024 ** 2 })
      await submit(driver, task)
      await over(driver, task)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'memory' })
      expect((await driver.collect(task.name)).state).toMatchObject({ reason: 'memory' })
    },
    3 * minutes,
  )
})

describe('what has to wait', () => {
  test(
    'more than any node has: queued with the words of the scheduler, and cancelled at once',
    async () => {
      const { driver, intent } = await open({ overcommit: 1 })
      const task = intent(['true'], { cores: 1000 })
      await submit(driver, task)
      const state = await waits(driver, task)
      expect(state).toMatchObject({
        cause: expect.stringMatching(/Unschedulable.*nodes are available.*Insufficient cpu/),
      })
      await driver.cancel([task.name], 1)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled' })
    },
    3 * minutes,
  )

  test(
    'a quota that is used up: queued with its words until it is raised',
    async () => {
      const { driver, shell, intent } = await open()
      // The keeper is there before there is a quota.
      await shell.run('true')
      await site.setQuota({ 'requests.cpu': '1m' })
      try {
        const task = intent(['true'])
        await submit(driver, task)
        const state = await waits(driver, task)
        expect(state).toMatchObject({ cause: expect.stringContaining('exceeded quota') })
        await site.setQuota({ 'requests.cpu': '100' })
        await over(driver, task)
        expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', exitCode: 0 })
      } finally {
        await site.setQuota(undefined)
      }
    },
    5 * minutes,
  )

  test(
    'a Pod that cannot make the work directory: lost before its start, which is no failure of the user',
    async () => {
      const { driver, shell, intent, root } = await open()
      await shell.run('true')
      await site.setQuota({ 'requests.cpu': '1m' })
      try {
        const task = intent(['true'])
        await submit(driver, task)
        await waits(driver, task, /exceeded quota/)
        await shell.run(`rm -rf ${root}/work/run; : > ${root}/work/run`)
        await site.setQuota({ 'requests.cpu': '100' })
        expect(await lost(driver, task)).toMatchObject({
          cause: expect.stringMatching(/exit code 73, before the task was started/),
        })
      } finally {
        await site.setQuota(undefined)
      }
    },
    5 * minutes,
  )

  test(
    'an image that nobody has: waits with the words of the node, then is lost with them, and the next is refused',
    async () => {
      const { driver, intent } = await open({ pullPatienceSeconds: 3 })
      const image = `${site.registry.address}/never:1`
      const container = { image, network: true, reuse: false, scope: 'run' }
      const task = intent(['true'], { container })
      await submit(driver, task)
      expect(await lost(driver, task)).toMatchObject({ cause: expect.stringMatching(/never:1.*not found/) })
      expect(await driver.submit([intent(['true'], { container })])).toMatchObject([
        { ok: false, error: { trouble: 'refused', message: expect.stringContaining(image) } },
      ])
    },
    3 * minutes,
  )

  test(
    'a container that the cluster cannot make: waits with the words of the node, then is lost with them, and the next is refused',
    async () => {
      const labels = { strict: 'yes', 'orrery.dev/part': 'task' }
      const own = 'Object.spec.containers.securityContext{runAsNonRoot: true, runAsUser: 0}'
      const container = `Object.spec.containers{name: "task", securityContext: ${own}}`
      const change = `Object{spec: Object.spec{containers: [${container}]}}`
      const condition = Object.entries(labels)
        .map(([key, value]) => `object.metadata.?labels[?"${key}"].orValue("") == "${value}"`)
        .join(' && ')
      await changePods(site, 'strict', { condition, change, labels }, (pod) => pod.includes('runAsNonRoot'))
      const { driver, intent } = await open({ pullPatienceSeconds: 3, podLabels: { strict: 'yes' } })
      const task = intent(['true'])
      await submit(driver, task)
      await waits(driver, task, /CreateContainerConfigError: .*non-root/)
      expect(await lost(driver, task)).toMatchObject({ cause: expect.stringContaining('non-root') })
      expect(await driver.submit([intent(['true'])])).toMatchObject([
        { ok: false, error: { trouble: 'refused', message: expect.stringContaining('non-root') } },
      ])
    },
    3 * minutes,
  )

  test(
    'a registry that is away: waits, and runs when it is back',
    async () => {
      const { driver, intent } = await open({ pullPatienceSeconds: 1 })
      const image = `${site.registry.address}/bb:1`
      await site.registry.kill()
      const task = intent(['/bin/busybox', 'true'], {
        container: { image, network: true, reuse: false, scope: 'run' },
      })
      try {
        await submit(driver, task)
        await waits(driver, task, /Pull/)
        await sleep(3000)
        expect(await stateOf(driver, task)).toMatchObject({ state: 'queued' })
      } finally {
        await site.registry.start()
      }
      await over(driver, task)
      const { state, detail } = await driver.collect(task.name)
      expect(state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect(detail).toMatchObject({
        engine: 'containerd',
        image,
        imageDigest: expect.stringMatching(/^sha256:[0-9a-f]{64}$/),
      })
      expect(detail?.pullSeconds).toBeGreaterThan(0)
    },
    4 * minutes,
  )

  test(
    'an image without a shell',
    async () => {
      const { driver, intent } = await open()
      const task = intent(['/pause'], {
        timeoutSeconds: 1,
        container: { image: site.images.pause, network: true, reuse: false, scope: 'run' },
      })
      await submit(driver, task)
      await over(driver, task)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'timeout' })
    },
    3 * minutes,
  )
})

describe('two runtimes in one namespace', () => {
  test(
    'are given tasks of the same names: each runs its own, also with another root',
    async () => {
      const tasks: { driver: RootedDriver; task: Intent }[] = []
      for (const runtime of ['one', 'other', 'other']) {
        const { driver, intent, root } = await open({}, { runtime })
        const task = intent(sh('echo "$1" > mine', root), { name: 'same-everywhere' })
        await submit(driver, task)
        tasks.push({ driver, task })
      }
      for (const { driver, task } of tasks) {
        await over(driver, task)
        expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', exitCode: 0 })
        expect(readFileSync(join(task.directory, 'mine'), 'utf8')).toBe(`${task.argv.at(-1)}\n`)
      }
    },
    3 * minutes,
  )
})

describe('silence', () => {
  test(
    'the API server goes away in the middle and comes back without its history: nothing ends, ends are told, an eviction is seen',
    async () => {
      const { driver, intent, root } = await open()
      const gate = join(root, 'gate')
      const [short, long] = [
        intent(sh('while [ ! -e "$1" ]; do sleep 0.1; done; exit 4', gate)),
        intent(['sleep', '600']),
      ]
      const [, id = ''] = await submit(driver, short, long)
      await running(driver, short)
      await running(driver, long)
      const end = over(driver, short)
      await site.killApiServer()
      await sleep(2000)
      await site.startApiServer()
      await site.compactEtcd()
      expect(await running(driver, long)).toMatchObject({ state: 'running' })
      writeFileSync(gate, '')
      await end
      expect(await becomes(driver, short, 'ended')).toMatchObject({ exitCode: 4, reason: 'exited' })
      // The words of the scheduler come by the watch alone: it is back, and sees why a Pod goes.
      const wide = intent(['true'], { cores: 1000 })
      await submit(driver, wide)
      await waits(driver, wide)
      await driver.cancel([wide.name], 1)
      await site.evict((await podOf(site, id)).name)
      expect(await lost(driver, long)).toMatchObject({ cause: expect.stringContaining('Eviction') })
    },
    5 * minutes,
  )

  test(
    'each answer of the API is lost once, before and after it was done: each task runs once',
    async () => {
      const token = await site.token()
      const real = clusterWith(() => Promise.resolve(token))
      const seen = new Set<string>()
      const request = async <T>(asked: ClusterRequest): Promise<T> => {
        const key = `${asked.verb ?? 'get'} ${asked.path.replace(/[0-9a-f]{20,}/g, '')}`
        const failure = (when: string): void => {
          if (seen.has(`${key} ${when}`)) return
          seen.add(`${key} ${when}`)
          throw new KubernetesError('route', `lost ${when}: ${key}`)
        }
        failure('before')
        const answer = await real.request<T>(asked)
        failure('after')
        return answer
      }
      const { driver, intent, root } = await open({}, { cluster: { ...real, request } })
      const ledger = join(root, 'ledger')
      const tasks = Array.from({ length: 5 }, () => intent(sh('echo x >> "$1"', ledger)))
      for (let tries = 0; ; tries++) {
        const outcomes = await driver.submit(tasks).catch(() => [])
        if (outcomes.length > 0 && outcomes.every(({ ok }) => ok)) break
        if (tries === 60) throw new Error(`not submitted: ${JSON.stringify(outcomes)}`)
        await sleep(500)
      }
      await over(driver, ...tasks)
      expect(readFileSync(ledger, 'utf8')).toBe('x\n'.repeat(5))
      expect(seen.size).toBeGreaterThan(5)
    },
    4 * minutes,
  )

  test(
    'a Job that another worker is about to make is waited for by whoever is given one of its tasks',
    async () => {
      const token = await site.token()
      const real = clusterWith(() => Promise.resolve(token))
      let begun = false
      const request = async <T>(asked: ClusterRequest): Promise<T> => {
        if (asked.verb === 'create' && asked.path.endsWith('/jobs')) {
          begun = true
          await sleep(4000)
        }
        return real.request<T>(asked)
      }
      const root = mkdtempSync(join(site.volume.folder, 'root-'))
      const slow = await open({ root, claimSeconds: 30 }, { cluster: { ...real, request } })
      const other = await open({ root, claimSeconds: 30 })
      const tasks = [slow.intent(['true']), slow.intent(['true'])]
      for (const { driver } of [slow, other]) await driver.find(tasks.map(({ name }) => name))
      const first = submit(slow.driver, ...tasks)
      await until('the Job to be on its way', async () => begun)
      expect(await submit(other.driver, ...tasks.slice(1))).toEqual((await first).slice(1))
      await over(other.driver, ...tasks)
    },
    3 * minutes,
  )

  test(
    'a token that is taken back is replaced by the next one',
    async () => {
      let token = await site.token()
      let asked = 0
      const cluster = clusterWith(() => {
        asked++
        return Promise.resolve(token)
      })
      const { driver, intent } = await open({}, { cluster })
      const first = intent(['true'])
      await submit(driver, first)
      await over(driver, first)
      const old = token
      token = await site.token()
      await site.revokeToken(old)
      const second = intent(['true'])
      await submit(driver, second)
      await over(driver, second)
      expect(asked).toBeGreaterThan(1)
    },
    4 * minutes,
  )
})

describe('what is wrong from the beginning', () => {
  const refusalOf = async (opened: OpenedRuntime): Promise<string> => {
    const outcome = await opened.driver.submit([opened.intent(['true'])]).catch((error: unknown) => error)
    if (!(outcome instanceof Error)) throw new Error(`not refused: ${JSON.stringify(outcome)}`)
    expect(outcome).toMatchObject({ trouble: 'refused' })
    return outcome.message
  }

  test(
    'is what the API server refuses: told in its words, once',
    async () => {
      const { driver, intent } = await open()
      const odd: [Record<string, unknown>, RegExp][] = [
        [{ tolerations: [{ key: 'a', operator: 'Nope' }] }, /Nope/],
        [{ affinity: 'near' }, /affinity/],
      ]
      for (const [own, words] of odd)
        expect(await driver.submit([intent(['true'], { site: own })])).toMatchObject([
          { ok: false, error: { trouble: 'refused', message: expect.stringMatching(words) } },
        ])
    },
    3 * minutes,
  )

  test(
    'is told in words, and nothing is made',
    async () => {
      const token = await site.token()
      const before = await site.kubectl('get', 'jobs,pods', '-A', '-o', 'name')
      expect(await refusalOf(await open({}, { namespace: 'nowhere' }))).toMatch(
        /namespace nowhere does not exist/,
      )
      expect(await refusalOf(await open({ volume: { persistentVolumeClaim: 'none' } }))).toMatch(
        /"none".*no such claim/,
      )
      const several = await refusalOf(await open({ volume: 'x', helperImage: undefined, overcommit: 0 }))
      for (const word of ['volume', 'helperImage', 'overcommit']) expect(several).toContain(word)
      await site.account(
        'poor',
        namespaceRights.filter(({ resources }) => !resources.includes('jobs')),
      )
      const poor = await site.token('poor')
      const cluster = clusterWith(() => Promise.resolve(poor))
      expect(await refusalOf(await open({}, { cluster }))).toMatch(
        /may not create jobs\.batch.*delete jobs\.batch/,
      )
      expect(
        await missingRights(
          clusterWith(() => Promise.resolve(token)),
          site.namespace,
        ),
      ).toEqual([])
      const expired = await site.token('orrery', -300)
      expect(
        await refusalOf(await open({}, { cluster: clusterWith(() => Promise.resolve(expired)) })),
      ).toMatch(/token is refused/)
      const strange =
        readFileSync('/etc/ssl/certs/ca-certificates.crt', 'utf8').split(
          /(?<=-----END CERTIFICATE-----\n)/,
        )[0] ?? ''
      const wrong = clusterWith(() => Promise.resolve(token), { certificateAuthority: strange })
      expect(await refusalOf(await open({}, { cluster: wrong }))).toMatch(/certificate.*refused/)
      expect(await site.kubectl('get', 'jobs,pods', '-A', '-o', 'name')).toBe(before)
    },
    3 * minutes,
  )
})

describe('many', () => {
  test(
    'Pods at once on 50 nodes: all recorded right, with requests that grow with batches',
    async () => {
      // `npx node bench/failures.ts pods` plays 2,000 on 200.
      expect(await playPods(await open({ settleSeconds: 1 }), [150, 50])).toEqual([])
    },
    15 * minutes,
  )
})

describe('a node that falls silent', () => {
  test(
    'its tasks run on and are waited for with a reason; they are lost when they have ended there',
    async () => {
      const { driver, intent, root } = await open({}, { runtime: 'silent' })
      const ledger = join(root, 'ledger')
      const task = intent(sh('while :; do echo x >> "$1"; sleep 0.2; done', ledger))
      const [id = ''] = await submit(driver, task)
      await running(driver, task)
      const { node } = await podOf(site, id)
      const host = site.nodes.find(({ name }) => name === node)
      if (host === undefined) throw new Error(`no node ${node}`)
      const lines = (): number => readFileSync(ledger).length
      await host.killKubelet()
      try {
        const waits = ({ state, cause }: { state: string; cause?: string }): boolean =>
          state === 'running' && cause?.startsWith(`node ${node} does not answer`) === true
        await becomes(driver, task, waits, 200)
        const before = lines()
        await until('the task to go on', async () => lines() > before)
        expect(await stateOf(driver, task)).toMatchObject({ state: 'running' })
      } finally {
        await host.startKubelet()
      }
      expect(await lost(driver, task)).toMatchObject({ cause: expect.stringContaining('TaintManager') })
      const after = lines()
      await sleep(2000)
      expect(lines()).toBe(after)
    },
    6 * minutes,
  )
})
