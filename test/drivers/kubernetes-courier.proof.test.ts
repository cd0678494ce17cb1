import { expect } from '@jest/globals'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import type { KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { KubernetesError } from '../../src/clients/kubernetes.ts'
import type { Intent, Stage } from '../../src/drivers/runtime/contract/driver.ts'
import { keyOf } from '../../src/drivers/runtime/kubernetes/job.ts'
import { kubernetesProblems } from '../../src/drivers/runtime/kubernetes/settings.ts'
import type { SiteShell } from '../../src/shell/site-shell.ts'
import { startKubernetes, type KubernetesSite } from '../../sites/kubernetes.ts'
import { toolImage } from './kubernetes-image.ts'
import {
  becomes,
  clusterOf,
  errandOf,
  metered,
  minutes,
  openRuntime,
  over,
  podOf,
  serverOf,
  sh,
  stateOf,
  submit,
  until,
  type Errand,
  type OpenedRuntime,
} from './kubernetes-site.ts'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, afterEach, beforeAll, describe, test } = needs(...sites.kubernetes)

let site: KubernetesSite
let helperImage: string
let token: string
const closing: (() => Promise<unknown>)[] = []

beforeAll(async () => {
  site = await startKubernetes({ nodes: 2 })
  helperImage = await toolImage(site)
  token = await site.token()
}, kubernetesStartMs)
afterAll(() => site?.stop(), 2 * minutes)
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
}, minutes)

const root = '/orrery'
/** One of several over the same runtime, each with connections of its own. */
const open = (
  configuration: Record<string, unknown> = {},
  runtime = 'carried',
  exec: (real: KubernetesCluster['exec']) => KubernetesCluster['exec'] = (same) => same,
): OpenedRuntime => {
  const real = clusterOf(site, () => Promise.resolve(token))
  const cluster = { ...real, exec: exec(real.exec) }
  const opened = openRuntime(cluster, {
    namespace: site.namespace,
    runtime,
    configuration: { root, helperImage, ...configuration },
  })
  closing.push(opened.close)
  return opened
}
const on = (node: string): Partial<Intent> => ({ site: { nodeSelector: { 'kubernetes.io/hostname': node } } })
const podNameOf = async (externalId: string): Promise<string> => (await podOf(site, externalId)).name
/** Whether the task's container has ended, as the cluster tells it. */
const hasEnded = async (pod: string): Promise<boolean> => {
  const path = '{.status.containerStatuses[?(@.name=="task")].state.terminated.exitCode}'
  return (await site.kubectl('get', 'pod', pod, '-o', `jsonpath=${path}`)) !== ''
}
/** Lets go what waits for a file `go` in its work directory. */
const letGo = (pod: string, { directory }: Intent): Promise<string> =>
  site.kubectl('exec', pod, '-c', 'courier', '--', '/bin/sh', '-c', `: > ${directory}/go`)
const waiting = 'until [ -e go ]; do sleep 0.1; done'
/**
 * A predecessor's folder at the keeper, with 8 MiB; what is made of them, and whether that came
 * back whole and was made once.
 */
const seedOf = async (shell: SiteShell): Promise<Stage> => {
  const from = `${root}/work/seed`
  await shell.run(`mkdir -p ${from} && head -c 8388608 /dev/urandom > ${from}/input`)
  return { from, label: 'seed' }
}
const twice = sh('echo ran >> ledger; cat input input > output')
const isTwice = async (shell: SiteShell, { directory, stage: [seed] }: Intent): Promise<void> => {
  const { stdout } = await shell.run(
    `cd ${directory} && cat ledger; sha256sum < input; sha256sum < ${seed?.from}/input; sha256sum ` +
      `< output; cat ${seed?.from}/input ${seed?.from}/input | sha256sum`,
  )
  const [ledger, input, sent, output, expected] = stdout.toString().split('\n')
  expect({ ledger, input, output }).toEqual({ ledger: 'ran', input: sent, output: expected })
}
const keeperPod = (runtime: string): string => `orrery-keeper-${keyOf(runtime)}`

describe('Kubernetes without a shared volume', () => {
  test(
    'a chain over two nodes: the files of the first are staged for the second, which runs elsewhere',
    async () => {
      const { driver, shell, intent } = open()
      const first = intent(
        sh(
          'mkdir deep; echo one > deep/a; ln -s deep/a link; echo kept > "it\'s kept"; echo said; echo wrong >&2',
        ),
        {
          ...on('node1'),
          expectedOutputs: ['deep/a'],
        },
      )
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
      expect(two).toMatchObject({
        node: 'node2',
        state: { state: 'ended', exitCode: 3 },
        missingOutputs: ['c'],
      })
      expect(two.manifest.files.map(({ path, change }) => [path, change])).toEqual([
        ['b', 'created'],
        ['deep/a', 'modified'],
      ])
      const { stdout } = await shell.run(
        `cat ${second.directory}/deep/a ${first.directory}/deep/a; stat -c %a ${second.directory}`,
      )
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
      const tasks = Array.from({ length: 20 }, (_, index) =>
        one.intent(sh(`echo ${index} >> mine; exit ${index % 3}`), { cores: 0.1 }),
      )
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
        const text = await site.kubectl(
          'get',
          'pods',
          '-l',
          'orrery.dev/part=task',
          '-o',
          'jsonpath={.items[*].status.phase}',
        )
        return !/Running|Pending/.test(text)
      })
      expect((await one.shell.run(`ls -A ${root}/fetch`)).stdout.toString()).toBe('')
    },
    5 * minutes,
  )

  test(
    'an output of 64 MiB is the same at the keeper',
    async () => {
      const { driver, shell, intent } = open()
      const task = intent(sh('head -c 67108864 /dev/urandom > big; sha256sum < big'))
      await submit(driver, task)
      await over(driver, task)
      const { manifest } = await driver.collect(task.name)
      const { bytes } = await driver.logs(task.name, 'stdout', { tail: 100 })
      const sum = bytes.toString().slice(0, 64)
      expect(manifest.files).toMatchObject([
        { path: 'big', sizeBytes: 67_108_864, checksum: `sha256:${sum}` },
      ])
      expect((await shell.run(`sha256sum < ${task.directory}/big`)).stdout.toString().slice(0, 64)).toBe(sum)
    },
    4 * minutes,
  )

  test(
    'links to the Pods break on the way there and on the way back: it runs once, and everything comes back whole',
    async () => {
      // What goes there and what comes back after the first mebibyte; of what is said last, the
      // answer.
      const broken = new Set<Errand>()
      const opened: Errand[] = []
      const { driver, shell, intent } = open({}, 'carried', (exec) => async (request) => {
        const channel = await exec(request)
        const errand = errandOf(request)
        if (errand === undefined) return channel
        opened.push(errand)
        if (broken.has(errand)) return channel
        broken.add(errand)
        if (errand === 'go' || errand === 'done')
          return {
            ...channel,
            done: channel.done.then(() =>
              Promise.reject(new KubernetesError('login', 'the answer was lost')),
            ),
          }
        return metered(channel, errand, async (bytes) => {
          if (bytes > 1024 ** 2) channel.close()
        })
      })
      const task = intent(twice, { stage: [await seedOf(shell)] })
      await submit(driver, task)
      await over(driver, task)
      // The end is told before the Pod is let go; one that has heard of it is asked no more,
      // whatever became of its answer.
      await until('all that can break to have been broken', async () => broken.size === 4)
      for (const kind of ['there', 'back'])
        expect(opened.filter((one) => one === kind).length).toBeGreaterThan(1)
      expect(opened.filter((kind) => kind === 'go')).toEqual(['go'])
      expect((await driver.collect(task.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      await isTwice(shell, task)
    },
    4 * minutes,
  )

  test(
    'workers are killed in the middle of carrying, one on the way there and one on the way back: another goes on, nothing is lost or doubled',
    async () => {
      const { driver, shell, intent } = open()
      const task = intent(twice, { stage: [await seedOf(shell)] })
      const place = {
        ...{
          namespace: site.namespace,
          runtime: 'carried',
          taskVariable: 'ORRERY_TASK',
          pollMilliseconds: 500,
        },
        ...{ configuration: { root, helperImage, overcommit: 20 }, server: { ...serverOf(site), token } },
      }
      const submitter = join(import.meta.dirname, 'kubernetes-submitter.ts')
      const dieOnTheWay = async (errand: 'there' | 'back'): Promise<void> => {
        const child = spawn(
          process.execPath,
          [submitter, JSON.stringify(place), JSON.stringify([task]), errand],
          {
            stdio: ['ignore', 'pipe', 'inherit'],
          },
        )
        closing.push(async () => child.kill('SIGKILL'))
        let said = ''
        for await (const bytes of child.stdout)
          if ((said += String(bytes)).includes(`stopped on the way ${errand}`)) break
        expect(said).toContain(`stopped on the way ${errand}`)
        child.kill('SIGKILL')
        await once(child, 'exit')
      }
      await dieOnTheWay('there')
      const pods = await site.kubectl(
        'get',
        'pods',
        '-l',
        'orrery.dev/part=task',
        '--field-selector=status.phase=Running',
        '-o',
        'name',
      )
      const pod = pods.trim().replace('pod/', '')
      const begun = 'cd $1 && ls -d .in-* && [ ! -e .go ]'
      expect(await site.kubectl('exec', pod, '-c', 'courier', '--', ...sh(begun, root))).toMatch(
        /^\.in-\w+\n$/,
      )
      await dieOnTheWay('back')
      const left = await shell.run(`cd ${root} && ls fetch && ls tasks/${task.name}.fetched`)
      expect([left.stdout.toString(), left.code]).toEqual([expect.stringContaining(`${task.name}.`), 2])
      const [id = ''] = await submit(driver, task)
      await over(driver, task)
      expect(pod).toContain(`${id}-`)
      expect((await driver.collect(task.name)).state).toMatchObject({
        state: 'ended',
        exitCode: 0,
        externalId: id,
      })
      await isTwice(shell, task)
      const jobs = await site.kubectl(
        'get',
        'jobs',
        '-o',
        'jsonpath={.items[*].metadata.annotations.orrery\\.dev/tasks}',
      )
      expect(jobs.split(' ').filter((name) => name === task.name)).toHaveLength(1)
      expect((await shell.run(`ls -A ${root}/fetch`)).stdout.toString()).toBe('')
    },
    4 * minutes,
  )

  test(
    'memory beyond the plan ends it for memory with what it had written; an image without a shell runs',
    async () => {
      const { driver, shell, intent } = open()
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
    'logs are read while it runs, and a cancel by whomever gives it the grace that it needs, and brings back what it has',
    async () => {
      const { driver, shell, intent } = open()
      const task = intent(
        sh(
          'trap "sleep 6; echo leaving; echo half > result; exit 9" TERM; echo begun; while :; do sleep 0.1; done',
        ),
      )
      await submit(driver, task)
      await becomes(driver, task, 'running')
      const logs = await until('its first words', async () => {
        const slice = await driver.logs(task.name, 'stdout', { offset: 2, limit: 100 })
        return slice.totalBytes > 0 && slice
      })
      expect({ ...logs, bytes: logs.bytes.toString() }).toEqual({ bytes: 'gun\n', offset: 2, totalBytes: 6 })
      // One that has seen nothing of it yet; without its word a task has five seconds.
      await open().driver.cancel([task.name], 10)
      expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled', exitCode: 9 })
      expect((await driver.logs(task.name, 'stdout', { tail: 100 })).bytes.toString()).toBe(
        'begun\nleaving\n',
      )
      expect((await shell.run(`cat ${task.directory}/result`)).stdout.toString()).toBe('half\n')
    },
    4 * minutes,
  )

  test(
    'one that waits for a node is cancelled and never starts',
    async () => {
      const { driver, intent } = open()
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
    'a Pod that the cluster makes after the cancel, by a worker that did not submit the task, goes',
    async () => {
      const first = open()
      await first.shell.run('true')
      await site.setQuota({ 'requests.cpu': '1m' })
      try {
        const task = first.intent(sh('exit 3'))
        const [id = ''] = await submit(first.driver, task)
        await becomes(
          first.driver,
          task,
          (state) => state.state === 'queued' && /exceeded quota/.test(state.cause ?? ''),
        )
        await first.close()
        const { driver, intent } = open()
        await driver.cancel([task.name], 1)
        await site.setQuota({ 'requests.cpu': '100' })
        const next = intent(['true'])
        await submit(driver, next)
        await over(driver, next)
        const job = id.replace(/-0$/, '')
        const failed = () => site.kubectl('get', 'job', job, '-o', 'jsonpath={.status.failedIndexes}')
        await until('the Pod to have come and gone', async () => (await failed()) === '0')
        expect(await stateOf(driver, task)).toMatchObject({ state: 'ended', reason: 'cancelled' })
      } finally {
        await site.setQuota(undefined)
      }
    },
    5 * minutes,
  )

  test(
    'a Pod that is evicted before anybody has fetched its outputs: lost, and the words say so',
    async () => {
      const first = open()
      const task = first.intent(sh(waiting))
      const [id = ''] = await submit(first.driver, task)
      await becomes(first.driver, task, 'running')
      const pod = await podNameOf(id)
      await first.close()
      await letGo(pod, task)
      await until('the end of the task', () => hasEnded(pod))
      await site.call('POST', `/api/v1/namespaces/${site.namespace}/pods/${pod}/eviction`, {
        ...{ apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name: pod, namespace: site.namespace } },
        deleteOptions: { gracePeriodSeconds: 1 },
      })
      await until(
        'the Pod to be gone',
        async () => !(await site.kubectl('get', 'pods', '-o', 'name')).includes(pod),
      )
      const { driver } = open()
      const state = await becomes(driver, task, 'lost')
      expect(state).toMatchObject({
        externalId: id,
        cause: expect.stringContaining('its outputs had not been fetched'),
      })
    },
    4 * minutes,
  )

  test(
    'the Pod of the keeper goes and has a volume: all goes on',
    async () => {
      const folder = `${root}/kept`
      const keeperVolume = { persistentVolumeClaim: site.volume.claim, mountPath: root }
      const { driver, shell, intent } = open({ keeperVolume, root: folder }, 'kept')
      const [before, during] = [intent(sh('echo 1 > one')), intent(sh(`${waiting}; echo 2 > two`))]
      const [, id = ''] = await submit(driver, before, during)
      await over(driver, before)
      await becomes(driver, during, 'running')
      await site.kubectl('delete', 'pod', keeperPod('kept'), '--grace-period=0', '--force')
      const pod = await podNameOf(id)
      await until('the files in the Pod', () => letGo(pod, during))
      await over(driver, during)
      expect((await driver.collect(during.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect((await driver.collect(before.name)).state).toMatchObject({ state: 'ended', exitCode: 0 })
      expect((await shell.run(`cat ${before.directory}/one ${during.directory}/two`)).stdout.toString()).toBe(
        '1\n2\n',
      )
    },
    5 * minutes,
  )

  test(
    'the Pod of the keeper goes and has none: what was there is lost, and is not run again',
    async () => {
      const { driver, intent } = open({}, 'fleeting')
      const stubborn = sh('trap "" TERM; while :; do sleep 1; done')
      const [before, during] = [intent(['true']), intent(stubborn)]
      const ids = await submit(driver, before, during)
      await over(driver, before)
      await becomes(driver, during, 'running')
      const pod = await podNameOf(ids[1] ?? '')
      await site.kubectl('delete', 'pod', keeperPod('fleeting'), '--grace-period=0', '--force')
      // It ignores the request to end: until its node has ended it, no other attempt may start.
      const waits = ({ state, cause }: { state: string; cause?: string }): boolean =>
        state === 'running' && cause?.includes('has to end first') === true
      expect(await becomes(driver, during, waits)).toMatchObject({ externalId: ids[1] })
      await becomes(driver, during, 'lost')
      const code = '{.status.containerStatuses[?(@.name=="task")].state.terminated.exitCode}'
      const each = `{range .items[*]}{.metadata.name}=${code}{"\\n"}{end}`
      expect(await site.kubectl('get', 'pods', '-o', `jsonpath=${each}`)).not.toContain(`${pod}=\n`)
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

test('storage is said to be shared where there is a volume for all, and nowhere else', () => {
  const sharedBy = (configuration: Record<string, unknown>): boolean =>
    open(configuration).driver.capabilities.sharedStorage
  const claim = { persistentVolumeClaim: site.volume.claim, mountPath: root }
  expect([sharedBy({}), sharedBy({ keeperVolume: claim }), sharedBy({ volume: claim })]).toEqual([
    false,
    false,
    true,
  ])
})

test('a volume of the keeper beside one for all is refused by name', () => {
  const both = { helperImage: 'a', volume: { hostPath: '/a' }, keeperVolume: { hostPath: '/b' } }
  expect(kubernetesProblems(both)).toEqual([expect.stringMatching(/keeperVolume .*take one of the two away/)])
  expect(kubernetesProblems({ helperImage: 'a', keeperVolume: { hostPath: 'b' } })).toEqual([
    expect.stringMatching(/keeperVolume .*must be/),
  ])
  expect(kubernetesProblems({ helperImage: 'a' })).toEqual([])
})
