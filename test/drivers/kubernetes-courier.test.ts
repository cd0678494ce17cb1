import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals'
import { PassThrough } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { openKubernetesCluster, type KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { KubernetesError } from '../../src/clients/kubernetes.ts'
import type { Intent, TaskState } from '../../src/drivers/runtime/driver.ts'
import { keyOf } from '../../src/drivers/runtime/kubernetes-job.ts'
import { kubernetesProblems } from '../../src/drivers/runtime/kubernetes-settings.ts'
import { openKubernetesDriver, openKubernetesShell } from '../../src/drivers/runtime/kubernetes.ts'
import type { RootedDriver } from '../../src/drivers/runtime/rooted.ts'
import type { SiteShell } from '../../src/drivers/shell.ts'
import { startKubernetes, type KubernetesSite } from '../sites/kubernetes.ts'
import { toolImage } from './kubernetes-image.ts'

const minutes = 60_000
const sh = (script: string): string[] => ['/bin/sh', '-c', script]

let site: KubernetesSite
let helperImage: string
let token: string
let count = 0
const closing: (() => Promise<unknown>)[] = []

beforeAll(async () => {
  site = await startKubernetes({ nodes: 2 })
  helperImage = await toolImage(site)
  token = await site.token()
}, 10 * minutes)
afterAll(() => site?.stop(), 2 * minutes)
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
}, minutes)

interface Worker {
  driver: RootedDriver
  shell: SiteShell
  close(): Promise<void>
}

const root = '/orrery'
/** One of several over the same runtime, each with connections of its own. */
const open = (
  configuration: Record<string, unknown> = {},
  runtime = 'carried',
  exec: (open: KubernetesCluster['exec']) => KubernetesCluster['exec'] = (same) => same,
): Worker => {
  const { hostname: host, port } = new URL(site.server)
  const real = openKubernetesCluster({
    host,
    port: Number(port),
    certificateAuthority: site.certificateAuthority,
    token: () => Promise.resolve(token),
    addressAllowed: () => true,
  })
  const cluster = { ...real, exec: exec(real.exec) }
  const place = {
    cluster,
    namespace: site.namespace,
    runtime,
    configuration: { root, helperImage, settleSeconds: 4, claimSeconds: 2, overcommit: 20, ...configuration },
  }
  const shell = openKubernetesShell(place)
  const driver = openKubernetesDriver({ ...place, shell, taskVariable: 'ORRERY_TASK', pollMilliseconds: 500 })
  let closed = false
  const close = async (): Promise<void> => {
    if (closed) return
    closed = true
    await driver.close()
    await shell.close()
    cluster.close()
  }
  closing.push(close)
  return { driver, shell, close }
}
const intent = (argv: string[], own: Partial<Intent> = {}, folder = root): Intent => {
  const name = `carried-${++count}`
  return {
    name,
    directory: `${folder}/work/run/${name}`,
    argv,
    environment: {},
    stage: [],
    expectedOutputs: [],
    cores: 1,
    memoryBytes: 0,
    timeoutSeconds: 0,
    ...own,
  }
}
const on = (node: string): Partial<Intent> => ({ site: { nodeSelector: { 'kubernetes.io/hostname': node } } })

const submit = async (driver: RootedDriver, ...intents: Intent[]): Promise<string[]> =>
  (await driver.submit(intents)).map((outcome) => {
    if (!outcome.ok) throw outcome.error
    return outcome.externalId
  })
const over = (driver: RootedDriver, ...intents: Intent[]): Promise<void> =>
  new Promise((resolve) => {
    const left = new Set(intents.map(({ name }) => name))
    driver.watch([...left], (name) => {
      left.delete(name)
      if (left.size === 0) resolve()
    })
  })
const until = async <T>(what: string, probe: () => Promise<T | undefined | false>, seconds = 90): Promise<T> => {
  const end = performance.now() + seconds * 1000
  let last: unknown
  for (;;) {
    const found = await probe().catch((error: unknown) => void (last = error))
    if (found !== undefined && found !== false) return found
    if (performance.now() > end) throw new Error(`waited in vain for ${what}`, { cause: last })
    await sleep(200)
  }
}
const stateOf = async (driver: RootedDriver, { name }: Intent): Promise<TaskState> =>
  (await driver.find([name])).get(name) ?? { state: 'unknown' }
const becomes = (driver: RootedDriver, task: Intent, state: TaskState['state']): Promise<TaskState> =>
  until(`${task.name} to be ${state}`, async () => {
    const found = await stateOf(driver, task)
    return found.state === state ? found : undefined
  })
const podOf = async (externalId: string): Promise<string> => {
  const text = await site.kubectl('get', 'pods', '-o', 'name')
  const line = text.split('\n').find((one) => one.startsWith(`pod/${externalId}-`))
  if (line === undefined) throw new Error(`no Pod of ${externalId} among ${text}`)
  return line.slice(4)
}
/** Whether the task's container has ended, as the cluster tells it. */
const hasEnded = async (pod: string): Promise<boolean> => {
  const path = '{.status.containerStatuses[?(@.name=="task")].state.terminated.exitCode}'
  return (await site.kubectl('get', 'pod', pod, '-o', `jsonpath=${path}`)) !== ''
}
const inPod = (pod: string, script: string): Promise<string> =>
  site.kubectl('exec', pod, '-c', 'courier', '--', '/bin/sh', '-c', `cd ${root} && ${script}`)
/** Lets go what waits for a file `go` in its work directory. */
const letGo = (pod: string, { directory }: Intent): Promise<string> => inPod(pod, `: > ${directory}/go`)
const waiting = 'until [ -e go ]; do sleep 0.1; done'
const keeperPod = (runtime: string): string => `orrery-keeper-${keyOf(runtime)}`

describe('Kubernetes without a shared volume', () => {
  test(
    'a chain over two nodes: the files of the first are staged for the second, which runs elsewhere',
    async () => {
      const { driver, shell } = open()
      const first = intent(sh('mkdir deep; echo one > deep/a; ln -s deep/a link; echo kept > "it\'s kept"; echo said; echo wrong >&2'), {
        ...on('node1'),
        expectedOutputs: ['deep/a'],
      })
      await submit(driver, first)
      await over(driver, first)
      const one = await driver.collect(first.name)
      expect(one).toMatchObject({
        node: 'node1',
        state: { state: 'ended', exitCode: 0, reason: 'exited' },
        missingOutputs: [],
        stderrTail: 'wrong',
      })
      expect(one.manifest.files.map(({ path }) => path)).toEqual(['deep/a', "it's kept", 'link'])

      const second = intent(sh('echo more >> link; echo two > b; exit 3'), {
        ...on('node2'),
        stage: [{ from: first.directory, label: first.name }],
        expectedOutputs: ['b', 'c'],
      })
      await submit(driver, second)
      await over(driver, second)
      const two = await driver.collect(second.name)
      expect(two).toMatchObject({ node: 'node2', state: { state: 'ended', exitCode: 3 }, missingOutputs: ['c'] })
      expect(two.manifest.files.map(({ path, change }) => [path, change])).toEqual([
        ['b', 'created'],
        ['deep/a', 'modified'],
      ])
      const { stdout } = await shell.run(`cat ${second.directory}/deep/a ${first.directory}/deep/a; stat -c %a ${second.directory}`)
      expect(stdout.toString()).toBe('one\nmore\none\n700\n')
      expect((await driver.logs(first.name, 'stdout', { tail: 100 })).bytes.toString()).toBe('said\n')
      await driver.remove(first.name)
      expect(await stateOf(driver, first)).toEqual({ state: 'unknown' })
    },
    4 * minutes,
  )

  test(
    'twenty at once, through two workers that are given the same: each runs once and everything comes back',
    async () => {
      const [one, two] = [open(), open()]
      const tasks = Array.from({ length: 20 }, (_, index) => intent(sh(`echo ${index} >> mine; exit ${index % 3}`), { cores: 0.1 }))
      const [ids, again] = await Promise.all([submit(one.driver, ...tasks), submit(two.driver, ...tasks)])
      expect(again).toEqual(ids)
      await Promise.all([over(one.driver, ...tasks), over(two.driver, ...tasks)])
      const places = new Set<string | undefined>()
      for (const [index, { name, directory }] of tasks.entries()) {
        const { state, manifest, node } = await two.driver.collect(name)
        expect(state).toMatchObject({ state: 'ended', exitCode: index % 3, reason: 'exited' })
        expect(manifest.files.map(({ path }) => path)).toEqual(['mine'])
        expect((await one.shell.run(`cat ${directory}/mine`)).stdout.toString()).toBe(`${index}\n`)
        places.add(node)
      }
      expect(places).toEqual(new Set(['node1', 'node2']))
      // Nothing is left on the way, and no Pod stays for its courier.
      await until('the Pods to be over', async () => {
        const text = await site.kubectl('get', 'pods', '-l', 'orrery.dev/part=task', '-o', 'jsonpath={.items[*].status.phase}')
        return !/Running|Pending/.test(text)
      })
      expect((await one.shell.run(`ls -A ${root}/fetch`)).stdout.toString()).toBe('')
    },
    5 * minutes,
  )

  test(
    'an output of 64 MiB is the same at the keeper',
    async () => {
      const { driver, shell } = open()
      const task = intent(sh('head -c 67108864 /dev/urandom > big; sha256sum < big'))
      await submit(driver, task)
      await over(driver, task)
      const { manifest } = await driver.collect(task.name)
      const { bytes } = await driver.logs(task.name, 'stdout', { tail: 100 })
      const sum = bytes.toString().slice(0, 64)
      expect(manifest.files).toMatchObject([{ path: 'big', sizeBytes: 67_108_864, checksum: `sha256:${sum}` }])
      expect((await shell.run(`sha256sum < ${task.directory}/big`)).stdout.toString().slice(0, 64)).toBe(sum)
    },
    4 * minutes,
  )

  test(
    'links to the Pods break on the way there and on the way back: it runs once, and everything comes back whole',
    async () => {
      // What goes there and what comes back after the first mebibyte; of what is said last, the answer.
      const kinds = { there: /tar -xpof/, go: /: > \.go/, back: /tar \$format/, done: /: > .*\.fetched/ }
      const broken = new Set<string>()
      const opened: string[] = []
      const { driver, shell } = open({}, 'carried', (exec) => async (request) => {
        const channel = await exec(request)
        const text = request.command.join(' ')
        const [kind] = Object.entries(kinds).find(([, pattern]) => pattern.test(text)) ?? []
        if (request.container !== 'courier' || kind === undefined) return channel
        opened.push(kind)
        if (broken.has(kind)) return channel
        broken.add(kind)
        if (kind === 'go' || kind === 'done')
          return { ...channel, done: channel.done.then(() => Promise.reject(new KubernetesError('login', 'the answer was lost'))) }
        let passed = 0
        const cut = new PassThrough({
          transform(bytes: Buffer, _, callback) {
            if ((passed += bytes.length) > 1024 ** 2) channel.close()
            callback(null, bytes)
          },
        })
        // Both ends of a link that is cut are told by it.
        cut.on('error', () => undefined)
        if (kind === 'there') {
          cut.pipe(channel.stdin)
          return { ...channel, stdin: cut }
        }
        channel.stdout.pipe(cut)
        return { ...channel, stdout: cut }
      })
      const seed = `${root}/work/seed`
      await shell.run(`mkdir -p ${seed} && head -c 8388608 /dev/urandom > ${seed}/input`)
      const task = intent(sh('echo ran >> ledger; cat input input > output'), { stage: [{ from: seed, label: 'seed' }] })
      await submit(driver, task)
      await over(driver, task)
      // The end is told before the Pod is let go; one that has heard of it is asked no more, whatever became of its answer.
      await until('all that can break to have been broken', async () => broken.size === 4)
      for (const kind of ['there', 'back']) expect(opened.filter((one) => one === kind).length).toBeGreaterThan(1)
      expect(opened.filter((kind) => kind === 'go')).toEqual(['go'])
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      const { stdout } = await shell.run(
        `cd ${task.directory} && cat ledger; sha256sum < input; sha256sum < ${seed}/input; sha256sum < output; cat ${seed}/input ${seed}/input | sha256sum`,
      )
      const [ledger, input, sent, output, expected] = stdout.toString().split('\n')
      expect({ ledger, input, output }).toEqual({ ledger: 'ran', input: sent, output: expected })
    },
    4 * minutes,
  )

  test(
    'memory beyond the plan ends it for memory with what it had written; an image without a shell runs',
    async () => {
      const { driver, shell } = open()
      const greedy = intent(sh('echo first > left; exec tail /dev/zero'), { memoryBytes: 48 * 1024 ** 2 })
      const container = { image: site.images.pause, network: true, reuse: false, scope: 'run' }
      const bare = intent(['/pause'], { timeoutSeconds: 1, container })
      await submit(driver, greedy, bare)
      await over(driver, greedy, bare)
      expect(await stateOf(driver, greedy)).toMatchObject({ state: 'ended', reason: 'memory' })
      expect(await stateOf(driver, bare)).toMatchObject({ state: 'ended', reason: 'timeout' })
      expect((await shell.run(`cat ${greedy.directory}/left`)).stdout.toString()).toBe('first\n')
    },
    4 * minutes,
  )

  test(
    'logs are read while it runs, and a cancel lets it end politely and brings back what it has',
    async () => {
      const { driver, shell } = open()
      const task = intent(sh('trap "echo leaving; echo half > result; exit 9" TERM; echo begun; while :; do sleep 0.1; done'))
      await submit(driver, task)
      await becomes(driver, task, 'running')
      const logs = await until('its first words', async () => {
        const slice = await driver.logs(task.name, 'stdout', { offset: 2, limit: 100 })
        return slice.totalBytes > 0 && slice
      })
      expect({ ...logs, bytes: logs.bytes.toString() }).toEqual({ bytes: 'gun\n', offset: 2, totalBytes: 6 })
      await driver.cancel([task.name], 10)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled' })
      expect((await driver.logs(task.name, 'stdout', { tail: 100 })).bytes.toString()).toBe('begun\nleaving\n')
      expect((await shell.run(`cat ${task.directory}/result`)).stdout.toString()).toBe('half\n')
    },
    4 * minutes,
  )

  test(
    'one that waits for a node is cancelled and never starts',
    async () => {
      const { driver } = open()
      const task = intent(['true'], on('node3'))
      await submit(driver, task)
      await until('the words of the scheduler', async () => {
        const state = await stateOf(driver, task)
        return state.state === 'queued' && /Unschedulable/.test(state.cause ?? '')
      })
      await driver.cancel([task.name], 1)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled' })
    },
    3 * minutes,
  )

  test(
    'a Pod that is evicted before anybody has fetched its outputs: lost, and the words say so',
    async () => {
      const first = open()
      const task = intent(sh(waiting))
      const [id = ''] = await submit(first.driver, task)
      await becomes(first.driver, task, 'running')
      const pod = await podOf(id)
      await first.close()
      await letGo(pod, task)
      await until('the end of the task', () => hasEnded(pod))
      await site.call('POST', `/api/v1/namespaces/${site.namespace}/pods/${pod}/eviction`, {
        ...{ apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name: pod, namespace: site.namespace } },
        deleteOptions: { gracePeriodSeconds: 1 },
      })
      await until('the Pod to be gone', async () => !(await site.kubectl('get', 'pods', '-o', 'name')).includes(pod))
      const { driver } = open()
      const state = await becomes(driver, task, 'lost')
      expect(state).toMatchObject({ externalId: id, cause: expect.stringContaining('its outputs had not been fetched') })
    },
    4 * minutes,
  )

  test(
    'the Pod of the keeper goes and has a volume: all goes on',
    async () => {
      const folder = `${root}/kept`
      const keeperVolume = { persistentVolumeClaim: site.volume.claim, mountPath: root }
      const { driver, shell } = open({ keeperVolume, root: folder }, 'kept')
      const [before, during] = [intent(sh('echo 1 > one'), {}, folder), intent(sh(`${waiting}; echo 2 > two`), {}, folder)]
      const [, id = ''] = await submit(driver, before, during)
      await over(driver, before)
      await becomes(driver, during, 'running')
      await site.kubectl('delete', 'pod', keeperPod('kept'), '--grace-period=0', '--force')
      const pod = await podOf(id)
      await until('the files in the Pod', () => letGo(pod, during))
      await over(driver, during)
      expect((await driver.collect(during.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect((await driver.collect(before.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect((await shell.run(`cat ${before.directory}/one ${during.directory}/two`)).stdout.toString()).toBe('1\n2\n')
    },
    5 * minutes,
  )

  test(
    'the Pod of the keeper goes and has none: what was there is lost, and is not run again',
    async () => {
      const { driver } = open({}, 'fleeting')
      const [before, during] = [intent(['true']), intent(['sleep', '600'])]
      const ids = await submit(driver, before, during)
      await over(driver, before)
      await becomes(driver, during, 'running')
      await site.kubectl('delete', 'pod', keeperPod('fleeting'), '--grace-period=0', '--force')
      for (const [index, task] of [before, during].entries())
        expect(await becomes(driver, task, 'lost')).toMatchObject({
          externalId: ids[index],
          cause: expect.stringContaining('keeperVolume'),
        })
      expect(await submit(driver, before, during)).toEqual(ids)
      const next = intent(sh('echo again'))
      await submit(driver, next)
      await over(driver, next)
      expect(await stateOf(driver, next)).toMatchObject({ state: 'ended', exitCode: 0 })
    },
    5 * minutes,
  )
})

test('a volume of the keeper beside one for all is refused by name', () => {
  const both = { helperImage: 'a', volume: { hostPath: '/a' }, keeperVolume: { hostPath: '/b' } }
  expect(kubernetesProblems(both)).toEqual([expect.stringMatching(/keeperVolume .*take one of the two away/)])
  expect(kubernetesProblems({ helperImage: 'a', keeperVolume: { hostPath: 'b' } })).toEqual([
    expect.stringMatching(/keeperVolume .*must be/),
  ])
  expect(kubernetesProblems({ helperImage: 'a' })).toEqual([])
})
