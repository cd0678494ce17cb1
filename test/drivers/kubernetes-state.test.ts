import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals'
import fc from '../support/fast-check.ts'
import type { Intent } from '../../src/drivers/runtime/contract/driver.ts'
import { arraysOf } from '../../src/drivers/runtime/batch/arrays.ts'
import { taskPath, taskScript } from '../../src/drivers/runtime/contract/task-script.ts'
import { openErrands } from '../../src/drivers/runtime/kubernetes/courier/errands.ts'
import type { Commands, Flow } from '../../src/drivers/runtime/kubernetes/courier/flow.ts'
import { waitScript } from '../../src/drivers/runtime/kubernetes/courier/scripts.ts'
import {
  jobManifest,
  jobScript,
  mostTasks,
  podRequestOf,
  type PodRequest,
} from '../../src/drivers/runtime/kubernetes/job.ts'
import {
  indexIn,
  taskPodOf,
  type ApiJob,
  type ApiPod,
  type TaskPod,
} from '../../src/drivers/runtime/kubernetes/pods.ts'
import { KubernetesError } from '../../src/clients/kubernetes.ts'
import type { KubernetesCluster } from '../../src/clients/kubernetes-cluster.ts'
import { kubernetesAdapter } from '../../src/drivers/runtime/kubernetes/adapter.ts'
import { linkErrorOf } from '../../src/clients/kubernetes-shell.ts'
import { openKeeper } from '../../src/drivers/runtime/kubernetes/keeper.ts'
import { openKeeperLoss } from '../../src/drivers/runtime/kubernetes/keeper-loss.ts'
import { kubernetesTrouble } from '../../src/drivers/runtime/kubernetes/trouble.ts'
import { checkNamespace } from '../../src/drivers/runtime/kubernetes/readiness.ts'
import { settingsOf } from '../../src/drivers/runtime/kubernetes/settings.ts'
import { judgePod, type KubernetesEvidence } from '../../src/drivers/runtime/kubernetes/state.ts'
import { isStatic } from '../../src/drivers/runtime/kubernetes/tools.ts'
import { factsLine } from '../../src/drivers/runtime/remote/record.ts'
import type { EndedSight, RemoteSight, StartedSight } from '../../src/drivers/runtime/remote/tasks.ts'
import { wrapper } from '../../src/drivers/runtime/remote/wrapper.ts'
import { runFolder } from '../support/run-folder.ts'

const patience = { settleSeconds: 10, pullPatienceSeconds: 300 }
const place = { array: 'orrery-a', index: 3, submittedAt: 1000, job: '1' }
const started: StartedSight = {
  form: 'started',
  pid: 1,
  node: 'pod',
  startedAt: 1010,
  submittedAt: 1000,
  supervised: undefined,
  marked: false,
  cancelAsked: false,
}
const ended = (more: Partial<EndedSight>): EndedSight => ({
  form: 'ended',
  pid: 1,
  node: 'pod',
  submittedAt: 1000,
  startedAt: 1010,
  finishedAt: 1020,
  exitCode: 0,
  signal: null,
  reason: 'exited',
  wallSeconds: 10,
  cpuSeconds: 1,
  peakMemoryBytes: null,
  measuredBy: 'rusage',
  ...more,
})
const pod = (more: Partial<TaskPod> = {}): TaskPod => ({
  name: 'orrery-a-3-x',
  job: 'orrery-a',
  index: 3,
  phase: 'Running',
  node: 'n1',
  ...more,
})
const evidence = (more: Partial<KubernetesEvidence>): KubernetesEvidence => ({
  sight: { form: 'none' },
  place,
  carried: false,
  cancelAsked: false,
  pod: 'silent',
  job: 'silent',
  overSeconds: 0,
  deletingSeconds: 0,
  pullSeconds: 0,
  ...more,
})
const judged = (more: Partial<KubernetesEvidence>) => judgePod(evidence(more), patience)
const terminated = (exitCode: number, reason = exitCode === 0 ? 'Completed' : 'Error') => ({
  phase: exitCode === 0 ? 'Succeeded' : 'Failed',
  startedAt: 1011,
  terminated: { exitCode, reason, message: '', startedAt: 1011, finishedAt: 1019 },
})

const sights = fc.constantFrom<RemoteSight>(
  { form: 'none' },
  { form: 'claimed', ageSeconds: 1 },
  { form: 'buried', at: 1005 },
  started,
  ended({}),
  ended({ exitCode: 137 }),
  ended({ exitCode: null, signal: 'SIGKILL' }),
  ended({ reason: 'stopped', exitCode: null, signal: 'SIGTERM' }),
  ended({ reason: 'timeout', exitCode: null, signal: 'SIGTERM' }),
)
const pods = fc.constantFrom<KubernetesEvidence['pod']>(
  'absent',
  pod(),
  pod({ phase: 'Pending' }),
  pod(terminated(0)),
  pod(terminated(3)),
  pod(terminated(137, 'OOMKilled')),
  pod({ phase: 'Failed', reason: 'Evicted', message: 'The node was low on resource: memory.' }),
  pod({ deleting: { graceSeconds: 30 } }),
)

describe('what is so', () => {
  test('silence ends nothing, whatever was asked and for how long', () => {
    fc.assert(
      fc.property(sights, fc.boolean(), fc.nat(100_000), (sight, cancelAsked, overSeconds) => {
        const { state, verdict } = judged({
          sight,
          cancelAsked,
          overSeconds,
          deletingSeconds: overSeconds,
        })
        expect(verdict).toBeUndefined()
        if (sight.form === 'none' || sight.form === 'claimed') expect(state.state).toBe('queued')
        if (sight.form === 'started') expect(state.state).toBe('running')
      }),
    )
  })

  test('an end in the record stays what it is, whatever the cluster says of an ordinary one', () => {
    fc.assert(
      fc.property(pods, fc.boolean(), fc.nat(1000), (seen, cancelAsked, overSeconds) => {
        expect(
          judged({ sight: ended({ exitCode: 5 }), pod: seen, job: 'absent', cancelAsked, overSeconds }),
        ).toMatchObject({
          state: { state: 'ended', exitCode: 5, reason: 'exited' },
          over: false,
        })
      }),
    )
  })

  test('what the record says of memory stands, though nobody else says so', () => {
    fc.assert(
      fc.property(fc.oneof(pods, fc.constant('silent' as const)), fc.nat(1000), (seen, overSeconds) => {
        const { state } = judged({
          sight: ended({ exitCode: 137, reason: 'memory' }),
          pod: seen,
          job: 'absent',
          overSeconds,
        })
        expect(state).toMatchObject({ state: 'ended', reason: 'memory' })
      }),
    )
  })

  test('an end needs a word of the record or of the cluster: nobody who lives is lost', () => {
    fc.assert(
      fc.property(sights, fc.boolean(), fc.nat(100_000), (sight, cancelAsked, overSeconds) => {
        const { state } = judged({ sight, pod: pod({ startedAt: 1009 }), job: {}, cancelAsked, overSeconds })
        if (sight.form === 'started' || sight.form === 'none') expect(state.state).toBe('running')
      }),
    )
  })

  test.each<[string, Partial<KubernetesEvidence>, object]>([
    [
      'evicted by the node',
      { sight: started, pod: pod({ phase: 'Failed', reason: 'Evicted', message: 'low on memory' }) },
      { end: 'lost', cause: 'Evicted: low on memory (Pod orrery-a-3-x on node n1)' },
    ],
    [
      'evicted before its start',
      { pod: pod({ phase: 'Failed', reason: 'Evicted', message: 'low on memory' }) },
      { end: 'never' },
    ],
    [
      'stopped by an eviction',
      {
        sight: ended({ reason: 'stopped' }),
        pod: pod({
          ...terminated(143),
          disruption: { reason: 'EvictionByEvictionAPI', message: 'Eviction API: evicting' },
        }),
      },
      { end: 'lost', cause: 'EvictionByEvictionAPI: Eviction API: evicting (Pod orrery-a-3-x on node n1)' },
    ],
    ['out of memory', { sight: started, pod: pod(terminated(137, 'OOMKilled')) }, { end: 'memory' }],
    [
      'a child out of memory',
      { sight: ended({ exitCode: 137 }), pod: pod(terminated(137, 'OOMKilled')) },
      { end: 'memory' },
    ],
    [
      'cancelled and gone',
      { sight: started, pod: 'absent', job: 'absent', cancelAsked: true },
      { end: 'cancelled' },
    ],
    [
      'too long for the site',
      { sight: started, pod: pod({ ...terminated(137), reason: 'DeadlineExceeded' }) },
      { end: 'walltime' },
    ],
    ['never begun', { pod: pod(terminated(128, 'StartError')) }, { end: 'never' }],
    [
      'killed without a record, in time',
      { sight: started, pod: pod(terminated(137)), overSeconds: 11 },
      { end: 'lost' },
    ],
    [
      'its Pod gone',
      { sight: started, pod: 'absent', job: { status: { failedIndexes: '1-4' } }, overSeconds: 11 },
      { end: 'lost' },
    ],
    [
      'its Job gone',
      { pod: 'absent', job: 'absent', overSeconds: 11 },
      { end: 'never', cause: 'Job orrery-a was deleted by others' },
    ],
  ])('%s', (_, more, verdict) => {
    expect(judged(more).verdict).toMatchObject(verdict)
  })

  test('a Pod that its node does not end is waited for, also by a cancel, until the cluster says that it is over', () => {
    fc.assert(
      fc.property(fc.nat(100_000), fc.boolean(), fc.boolean(), (deletingSeconds, cancelAsked, began) => {
        const leaving = pod({ deleting: { graceSeconds: 30 }, ...(began ? { startedAt: 1011 } : {}) })
        const sight: RemoteSight = began ? started : { form: 'none' }
        // Its record may be on the node alone.
        const carried = !began
        const { state, verdict } = judged({
          sight,
          carried,
          pod: leaving,
          job: {},
          deletingSeconds,
          cancelAsked,
        })
        expect(verdict).toBeUndefined()
        expect(state.state).toBe(began ? 'running' : 'queued')
        const cause = 'cause' in state ? state.cause : undefined
        if (deletingSeconds > 40) expect(cause).toMatch(/^node n1 does not answer.*kubectl delete node n1/)
        else expect(cause).toBeUndefined()
      }),
    )
    // On a file system that all nodes see, the record of a task that has not begun is made unusable.
    const waiting = pod({ phase: 'Pending', deleting: { graceSeconds: 30 } })
    expect(judged({ pod: waiting, job: {}, deletingSeconds: 39 }).verdict).toBeUndefined()
    expect(judged({ pod: waiting, job: {}, deletingSeconds: 41 }).verdict).toMatchObject({ end: 'never' })
    const collected = { reason: 'DeletionByPodGC', message: 'PodGC: node no longer exists' }
    const over = pod({ phase: 'Failed', deleting: { graceSeconds: 30 }, disruption: collected })
    expect(judged({ sight: started, pod: over, deletingSeconds: 41 }).verdict).toMatchObject({
      end: 'lost',
      cause: expect.stringContaining('node no longer exists'),
    })
  })

  test('a list that lacks its Pod ends nothing while its Job has no end of it', () => {
    const jobs = fc.constantFrom<ApiJob>({}, { status: {} }, { status: { failedIndexes: '0-2,4' } })
    fc.assert(
      fc.property(jobs, fc.boolean(), fc.nat(100_000), (job, cancelAsked, overSeconds) => {
        const { state, verdict, over } = judged({
          sight: started,
          pod: 'absent',
          job,
          cancelAsked,
          overSeconds,
        })
        expect([verdict, over]).toEqual([undefined, false])
        expect(state).toMatchObject({ state: 'running', cause: expect.stringContaining('lists no Pod') })
      }),
    )
    const failed = { type: 'Failed', status: 'True', reason: 'DeadlineExceeded' }
    for (const job of [{ status: { completedIndexes: '3' } }, { status: { conditions: [failed] } }])
      expect(judged({ sight: started, pod: 'absent', job, overSeconds: 11 }).verdict).toMatchObject({
        end: 'lost',
      })
  })

  test('the end of a Pod that the Job made later is none of a task that another Pod began', () => {
    const sight = { ...started, node: 'orrery-a-3-first' }
    const seen = { sight, job: { status: { completedIndexes: '3' } }, overSeconds: 1e6 }
    for (const later of [pod(terminated(0)), pod(terminated(97)), pod({ phase: 'Pending' })]) {
      const { state, verdict } = judged({ ...seen, pod: later })
      expect(verdict).toBeUndefined()
      expect(state).toMatchObject({ state: 'running', cause: expect.stringContaining('orrery-a-3-first') })
    }
    const own = { ...pod(terminated(137)), name: sight.node }
    expect(judged({ ...seen, pod: own }).verdict).toMatchObject({ end: 'lost' })
    // With the network of its node it sees the name of that.
    expect(judged({ ...seen, sight: { ...started, node: 'n1' }, pod: own }).verdict).toBeDefined()
  })

  test('a container that left no record has time to; then its task is lost before its start, whatever the exit code', () => {
    for (const exitCode of [0, 4, 66, 73, 97, 126, 143])
      for (const carried of [false, true]) {
        const seen = { pod: pod(terminated(exitCode)), carried }
        expect(judged(seen)).toMatchObject({ over: true, state: { state: 'running' } })
        expect(judged(seen).verdict).toBeUndefined()
        const { verdict, state } = judged({ ...seen, overSeconds: 11 })
        expect(state.state).toBe('lost')
        expect(verdict).toMatchObject({
          end: 'never',
          cause: expect.stringMatching(
            carried
              ? `exit code ${exitCode}, before the files of the task were in Pod orrery-a-3-x`
              : `exit code ${exitCode}, before the task was started: .* node n1, has it room`,
          ),
        })
      }
  })

  test('a record that is being written is waited for', () => {
    const seen = { pod: pod(terminated(4)), overSeconds: 1e6 }
    expect(judged({ ...seen, sight: { form: 'claimed', ageSeconds: 1 } }).verdict).toBeUndefined()
    expect(judged({ ...seen, sight: { form: 'claimed', ageSeconds: 11 } }).verdict).toMatchObject({
      end: 'lost',
    })
  })

  test('a Pod that is not made yet is waited for, with the words of whoever makes it', () => {
    expect(
      judged({ pod: 'absent', job: {}, jobWords: 'exceeded quota: limit', overSeconds: 1e6 }),
    ).toMatchObject({
      state: { state: 'queued', cause: 'exceeded quota: limit' },
      over: false,
    })
  })

  test('an image that nobody has is hopeless after a while, one whose registry is away never', () => {
    const waiting = (message: string, reason = 'ImagePullBackOff'): TaskPod =>
      pod({ phase: 'Pending', waiting: { reason, message } })
    const missing = waiting(
      'Back-off pulling image "x": ErrImagePull: rpc error: code = NotFound: docker.io/x: not found',
    )
    expect(judged({ pod: missing, pullSeconds: 299 }).impossible).toBeUndefined()
    expect(judged({ pod: missing, pullSeconds: 300 }).impossible).toContain('not found')
    expect(
      judged({ pod: waiting('dial tcp: connection refused'), pullSeconds: 1e6 }).impossible,
    ).toBeUndefined()
    expect(judged({ pod: waiting('couldn’t parse image name', 'InvalidImageName') }).impossible).toBeDefined()
    const unmade = waiting('secret "token" not found', 'CreateContainerConfigError')
    expect(judged({ pod: unmade, pullSeconds: 299 }).impossible).toBeUndefined()
    expect(judged({ pod: unmade, pullSeconds: 300 }).impossible).toBe(
      'CreateContainerConfigError: secret "token" not found',
    )
    // The trouble of one node is no word about the others.
    for (const reason of ['CreateContainerError', 'RunContainerError']) {
      const { impossible, held } = judged({ pod: waiting('no space left', reason), pullSeconds: 300 })
      expect([impossible, held]).toEqual([undefined, `${reason}: no space left`])
    }
  })
})

describe('what is asked for', () => {
  const settings = settingsOf({
    helperImage: 'tools:1',
    volume: { nfs: { server: 'files', path: '/export' } },
    overcommit: 4,
  })
  const here = { runtime: 'lab', root: '/orrery' }
  const jobsOf = (requests: ReadonlyMap<string, PodRequest>, { runtime, root }: typeof here) =>
    arraysOf(requests, { arraySize: mostTasks, nameWords: [runtime, root] })
  const intent = (more: Partial<Intent>): Intent => ({
    name: 'task',
    directory: '/d',
    argv: ['true'],
    environment: {},
    stage: [],
    expectedOutputs: [],
    cores: 2,
    memoryBytes: 1024 ** 3,
    timeoutSeconds: 0,
    ...more,
  })

  test('an image that must be in place is not pulled, whatever the runtime says of others', () => {
    const container = { image: 'a:1', network: false, reuse: false, scope: 'r' }
    const policies = [true, false].map((inPlace) => {
      const always = { ...settings, imagePullPolicy: 'Always' }
      const request = podRequestOf(intent({ container: { ...container, inPlace } }), always)
      const [job] = jobsOf(new Map([['task', request]]), here)
      const options = { namespace: 'n', runtime: 'r', settings: always, command: ['true'] }
      const manifest = jobManifest(job!, options) as any
      return manifest.spec.template.spec.containers[0].imagePullPolicy
    })
    expect(policies).toEqual(['Never', 'Always'])
  })

  test('limits are the plan, requests what the configuration reserves of it; nothing of the cluster is in reach', () => {
    const request = podRequestOf(
      intent({ gpus: 1, container: { image: 'a@sha256:0', network: false, reuse: false, scope: 'r' } }),
      settings,
    )
    const [job] = jobsOf(new Map([['task', request]]), here)
    const manifest = jobManifest(job!, { namespace: 'n', runtime: 'r', settings, command: ['/bin/sh', 'x'] })
    expect(manifest).toMatchObject({
      spec: {
        completionMode: 'Indexed',
        completions: 1,
        backoffLimitPerIndex: 0,
        template: {
          metadata: { labels: { 'orrery.dev/network': 'off' } },
          spec: {
            automountServiceAccountToken: false,
            restartPolicy: 'Never',
            containers: [
              {
                image: 'a@sha256:0',
                resources: {
                  requests: { cpu: '500m', memory: String(1024 ** 3 / 4), 'nvidia.com/gpu': '1' },
                  limits: { cpu: '2000m', memory: String(1024 ** 3), 'nvidia.com/gpu': '1' },
                },
                securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
              },
            ],
          },
        },
      },
    })
  })

  test('equal requests are one Job, a name is in one, and the same names make the same Job where their files are the same', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.nat(10_000), { maxLength: 300 }),
        fc.integer({ min: 1, max: 3 }),
        (numbers, kinds) => {
          const requests = new Map(
            numbers.map((number) => [
              `t-${number}`,
              podRequestOf(intent({ cores: 1 + (number % kinds) }), settings),
            ]),
          )
          const jobs = jobsOf(requests, here)
          const names = new Set(jobs.map(({ name }) => name))
          expect(jobs.flatMap(({ tasks }) => tasks).sort()).toEqual([...requests.keys()].sort())
          expect(names.size).toBe(jobs.length)
          expect(jobs.length).toBeLessThanOrEqual(kinds)
          expect(new Set(jobsOf(new Map([...requests].reverse()), here).map(({ name }) => name))).toEqual(
            names,
          )
          for (const elsewhere of [
            { ...here, runtime: 'another' },
            { ...here, root: '/another' },
          ])
            expect(jobsOf(requests, elsewhere).filter(({ name }) => names.has(name))).toEqual([])
        },
      ),
    )
  })

  test('its supervisor is told about the container where that is measured, and all else as the site has it', () => {
    const folder = mkdtempSync(join(runFolder(), 'kubernetes-job-'))
    try {
      mkdirSync(join(folder, 'tasks'))
      const supervisor =
        "/bin/sh 'print it' foreground /tasks VARIABLE 7 /usr/bin/elsewhere --of-the-keeper 'the clock' '' \"$script\""
      const script = jobScript([{ script: 'a.1' }, { script: 'b.2' }], {
        pack: 'none',
        root: folder,
        supervisor,
        tools: false,
      })
      writeFileSync(join(folder, 'tasks', 'print it'), 'for each; do echo "[$each]"; done')
      const text = execFileSync('/bin/sh', ['-c', script], {
        encoding: 'utf8',
        env: { PATH: '/bin', JOB_COMPLETION_INDEX: '1' },
      })
      const told = text.trim().split('\n')
      expect(told.slice(0, 3)).toEqual(['[foreground]', '[/tasks]', '[VARIABLE]'])
      expect(told[3]).toMatch(/^\[\d+\]$/)
      expect(['[]', '[/usr/bin/time]', '[/bin/time]']).toContain(told[4])
      expect(told[5]).not.toBe('[--of-the-keeper]')
      expect(told.slice(6)).toEqual(['[the clock]', '[]', '[b.2]'])
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  test('a Pod gives its task the variables of its image, unless nothing names the image', () => {
    const container = { image: 'tools:1', network: false, reuse: false, scope: 'r' }
    const own = { ...settings, image: 'own:1' }
    const chosen = (of: typeof settings, more: Partial<Intent> = {}) => {
      const [job] = jobsOf(new Map([['task', podRequestOf(intent(more), of)]]), here)
      const options = { namespace: 'n', runtime: 'r', settings: of, command: ['true'] }
      const [{ image, env }] = (jobManifest(job!, options) as any).spec.template.spec.containers
      return [image, ...env.filter(({ name }: { name: string }) => name === 'ORRERY_IMAGE')]
    }
    expect(chosen(settings)).toEqual(['tools:1', { name: 'ORRERY_IMAGE', value: '' }])
    expect([chosen(settings, { container }), chosen(own)]).toEqual([['tools:1'], ['own:1']])
    expect(settingsOf({ helperImage: 'x', image: 'y' }).image).toBe('y')
  })

  /** The environment that a task prints whose container starts with `given`. */
  const seenBy = (
    when: 'at once' | 'when its files were carried',
    given: (folder: string) => Record<string, string>,
    task: Partial<Intent> = {},
  ): { folder: string; seen: object } => {
    const folder = mkdtempSync(join(runFolder(), 'kubernetes-image-'))
    try {
      const [tasks, opt] = [join(folder, 'tasks'), join(folder, "opt'$PATH`id`")]
      for (const path of [tasks, opt, join(folder, 'work')]) mkdirSync(path)
      writeFileSync(join(opt, 'tool'), '#!/bin/sh\nenv -0\n', { mode: 0o755 })
      const supervisor = `/bin/sh wrapper foreground ${tasks} ORRERY_TASK '' '' '' '' '' "$script"`
      const options = { pack: 'none', root: folder, supervisor, tools: false }
      const own = intent({
        ...{ name: 'one', argv: ['tool'], directory: join(folder, 'work') },
        environment: { OWN: 'task', BOTH: 'task' },
        ...task,
      })
      const text = `#\n# limit 0 grace 0 memory 0 bytes 0 cores 0\n${taskScript(own, 'ORRERY_TASK', true)}`
      writeFileSync(join(tasks, 'wrapper'), wrapper)
      writeFileSync(join(tasks, 'one.1.run'), text)
      writeFileSync(join(tasks, 'script'), jobScript([{ script: 'one.1' }], options))
      execFileSync('mkfifo', [join(folder, '.alive')])
      writeFileSync(join(folder, '.go'), '')
      const cluster = {
        ...{ JOB_COMPLETION_INDEX: '0', HOSTNAME: 'pod', ORRERY_POD: 'pod', ORRERY_NODE: 'node' },
        ...{ KUBERNETES_SERVICE_HOST: '10.0.0.1', KUBERNETES_PORT_443_TCP_ADDR: '10.0.0.1' },
      }
      const job = join(tasks, 'script')
      const words = when === 'at once' ? [job] : ['-c', waitScript(folder, job, '/bin/sh')]
      execFileSync('/bin/sh', words, { env: { ...given(opt), ...cluster, HOME: '/root' } })
      expect(readFileSync(join(tasks, 'one.err'), 'utf8')).toBe('')
      expect(readFileSync(join(tasks, 'one.task'), 'utf8')).toMatch(/\nexit 0 exited \d+ \.\n$/)
      const seen = readFileSync(join(tasks, 'one.out'), 'utf8')
        .split('\0')
        // Shells differ in what they do with names that are none for them.
        .filter((line) => line !== '' && !/^(USER|LOGNAME|1x|a\.b)=/.test(line))
        .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)])
      return { folder, seen: Object.fromEntries(seen) }
    } finally {
      rmSync(folder, { recursive: true })
    }
  }
  const always = (folder: string) => ({
    ...{ OWN: 'task', BOTH: 'task', LANG: 'C.UTF-8', ORRERY_TASK: 'one' },
    ...{ HOME: join(folder, 'work.home'), TMPDIR: '/tmp', PWD: join(folder, 'work') },
  })
  const image = (opt: string) => ({
    PATH: `${opt}:/usr/bin:/bin`,
    MARK: "it's\n$HOME",
    // Names that scripts of ours use too.
    ...{ BOTH: 'image', TOOLS: '/opt/tools', ROOT: '/r', name: 'n', script: 's', LC_ALL: 'xx_XX.UTF-8' },
    ...{ LD_LIBRARY_PATH: '/usr/local/nvidia/lib64', CONDA_PREFIX: '/opt/conda' },
  })
  const odd = { '1x': '1', 'a.b': '1' }

  test.each(['at once', 'when its files were carried'] as const)(
    'a task has the environment of its image, and finds programs there: %s',
    (when) => {
      const { folder, seen } = seenBy(when, (opt) => ({ ...image(opt), ...odd }))
      expect(seen).toEqual({ ...image(join(folder, "opt'$PATH`id`")), ...always(folder) })
    },
  )

  test.each(['at once', 'when its files were carried'] as const)(
    'a task has only its own environment where nothing names its image, or the variables of that are 128 KiB: %s',
    (when) => {
      const large = { ONE: 'é'.repeat(30_000), TWO: 'é'.repeat(30_000) }
      for (const more of [{ ORRERY_IMAGE: '' }, large]) {
        const { folder, seen } = seenBy(when, (opt) => ({ ...image(opt), ...odd, ...more }), {
          argv: ['/bin/sh', '-c', 'env -0'],
        })
        expect(seen).toEqual({ PATH: taskPath, ...always(folder) })
      }
    },
  )

  test('a configuration is refused with all that is wrong with it', () => {
    expect(() =>
      settingsOf({
        root: 'relative',
        image: 'a b',
        volume: { hostPath: '../x' },
        gpuResource: 'gpu',
        runAsUser: -1,
      }),
    ).toThrow(/root "relative".*image "a b".*gpuResource "gpu".*runAsUser -1.*volume/s)
    expect(() =>
      settingsOf({ helperImage: 'x', root: '/a', volume: { hostPath: '/x', mountPath: '/b' } }),
    ).toThrow(/mountPath/)
  })

  test('secrets for images are refused unless they are the names of secrets, of the runtime and of an activity', () => {
    const good = [{ name: 'registry-login' }]
    const { pod } = settingsOf({ helperImage: 'x', imagePullSecrets: good })
    expect(pod['imagePullSecrets']).toEqual(good)
    expect(
      podRequestOf(intent({ site: { imagePullSecrets: good } }), settings).pod?.['imagePullSecrets'],
    ).toEqual(good)
    for (const imagePullSecrets of [
      ['name'],
      'name',
      [{}],
      [{ name: 'A_b' }],
      [{ name: 'a', key: 'b' }],
      [null],
      {},
    ]) {
      expect(() => settingsOf({ helperImage: 'x', imagePullSecrets })).toThrow(
        /imagePullSecrets .*\{name: NAME\}/,
      )
      expect(() => podRequestOf(intent({ site: { imagePullSecrets } }), settings)).toThrow(/imagePullSecrets/)
    }
  })

  test('a status of the server below 500 is a refusal, but for those that pass', () => {
    const trouble = (status: number): string =>
      kubernetesTrouble(new KubernetesError('login', 'words', { status })).trouble
    for (const status of [400, 401, 403, 404, 405, 413, 422]) expect(trouble(status)).toBe('refused')
    for (const status of [408, 409, 425, 429, 500, 503]) expect(trouble(status)).toBe('unknown')
  })

  test('a keeper that the server refuses to make is refused with its words; one that is on its way is not', async () => {
    const status = (code: number, words: string) => new KubernetesError('login', words, { status: code })
    const opened = (create: KubernetesError) => {
      const requests: string[] = []
      const cluster = {
        request: ({ verb = 'get' }: { verb?: string }) => {
          requests.push(verb)
          return Promise.reject(verb === 'create' ? create : status(404, 'not found'))
        },
        exec: () => Promise.reject(status(404, 'no Pod')),
      }
      const at = { cluster, namespace: 'lab', runtime: 'r', settings } as unknown as Parameters<
        typeof openKeeper
      >[0]
      return { requests, answer: openKeeper(at)(['true'], 1500).catch((error: unknown) => error) }
    }
    const refused = opened(status(400, 'json: cannot unmarshal string into Go struct field'))
    expect(linkErrorOf(await refused.answer)).toMatchObject({
      permanent: true,
      message: expect.stringContaining('cannot unmarshal string'),
    })
    expect(refused.requests.filter((verb) => verb === 'create')).toHaveLength(1)
    expect(linkErrorOf(await opened(status(429, 'slow down')).answer)).toMatchObject({ permanent: false })
  })

  test('a cluster whose Jobs end all tasks after some failures is refused with its version', async () => {
    const checked = (version: object | KubernetesError) => {
      const rule = { verbs: ['*'], apiGroups: ['*'], resources: ['*'] }
      const request = ({ path }: { path: string }): Promise<unknown> => {
        if (path !== '/version') return Promise.resolve({ status: { resourceRules: [rule] } })
        return version instanceof KubernetesError ? Promise.reject(version) : Promise.resolve(version)
      }
      const at = { cluster: { request }, namespace: 'lab', paths: {} }
      return checkNamespace(at as unknown as Parameters<typeof checkNamespace>[0], {})
    }
    const old = { major: '1', minor: '28+', gitVersion: 'v1.28.9-eks-1' }
    await expect(checked(old)).rejects.toMatchObject({
      trouble: 'refused',
      message: expect.stringMatching(/Kubernetes v1\.28\.9-eks-1,.*update it to 1\.29/),
    })
    for (const minor of ['29', '36+']) await checked({ ...old, minor })
    await checked({ ...old, major: '2', minor: '0' })
    await checked(new KubernetesError('login', 'forbidden', { status: 403 }))
    await expect(checked(new KubernetesError('login', 'busy', { status: 503 }))).rejects.toMatchObject({
      trouble: 'unknown',
    })
  })

  test('an image that no registry could be asked for is refused with its name', () => {
    for (const image of ['$(id)', 'a b', '-x', ''])
      expect(() =>
        podRequestOf(intent({ container: { image, network: true, reuse: false, scope: 'r' } }), settings),
      ).toThrow(/image/)
  })
})

test('a task waits with the reason why its files do not arrive, also while its record at the keeper is empty', async () => {
  const labelsOf = {
    'batch.kubernetes.io/job-name': 'orrery-a',
    'batch.kubernetes.io/job-completion-index': '3',
  }
  const running = { state: { running: { startedAt: '2026-01-01T00:00:00Z' } } }
  const api: ApiPod = {
    metadata: { name: 'orrery-a-3-x', labels: labelsOf },
    status: {
      phase: 'Running',
      containerStatuses: ['task', 'courier'].map((name) => ({ name, ...running })),
    },
  }
  const watch: KubernetesCluster['watch'] = (_path, _query, { standing, listed }) => {
    standing(true)
    listed([api as never])
    return () => undefined
  }
  const adapter = kubernetesAdapter({
    ...{ site: { root: () => Promise.resolve('/orrery') }, pollMilliseconds: 1000 },
    at: { cluster: { watch }, paths: {}, ours: '' },
    settings: () => settingsOf({ helperImage: 'tools:1' }),
    courier: { see() {}, keep() {}, trouble: () => 'No space left on device' },
  } as unknown as Parameters<typeof kubernetesAdapter>[0])
  const listing = await adapter.list([{ name: 'one', place }])
  const stateOf = (sight: RemoteSight) =>
    adapter.judge({ name: 'one', sight, place, cancelAsked: false }, listing).state
  for (const sight of [{ form: 'none' }, { form: 'claimed', ageSeconds: 100 }] as const)
    expect(stateOf(sight)).toMatchObject({ state: 'queued', cause: 'Delivery: No space left on device' })
  expect(stateOf(started)).not.toHaveProperty('cause')
})

describe('files are carried', () => {
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(runFolder(), 'kubernetes-errands-'))
  })
  afterEach(() => rmSync(folder, { recursive: true, force: true }))

  const flowOf = (script: string): Flow => {
    const child = spawn('/bin/sh', ['-c', script])
    let stderr = ''
    child.stdin.on('error', () => undefined)
    child.stderr.on('data', (bytes: Buffer) => void (stderr += bytes.toString()))
    return {
      ...{ stdin: child.stdin, stdout: child.stdout, close: () => void child.kill() },
      done: once(child, 'close').then(([code]) => ({ code: code as number | null, stderr })),
    }
  }
  const outputOf = async (flow: Flow) => {
    const chunks: Buffer[] = []
    flow.stdout.on('data', (bytes: Buffer) => chunks.push(bytes))
    flow.stdin.end()
    return { ...(await flow.done), stdout: Buffer.concat(chunks) }
  }
  /**
   * The keeper and the Pod of task `n` as two folders of this machine. `changed` changes scripts,
   * and may reject.
   */
  const opened = (changed: (what: string, script: string) => string = (_, script) => script) => {
    const [keeper, inside] = [join(folder, 'keeper'), join(folder, 'pod')]
    for (const path of ['tasks', 'arrays/orrery-a', 'work/n', 'bin/x']) {
      mkdirSync(join(keeper, path), { recursive: true })
      mkdirSync(join(inside, path), { recursive: true })
    }
    writeFileSync(join(keeper, 'arrays/orrery-a/script'), 'echo n.1')
    writeFileSync(join(keeper, 'bin/x/wrapper'), '')
    const facts = { directory: join(keeper, 'work/n'), expectedOutputs: [], sources: [] }
    const times = { submittedAt: 0, zero: 0, ahead: 0 }
    writeFileSync(join(keeper, 'tasks/n.1.run'), `#\n${factsLine({ ...facts, ...times })}\n`)
    const there = (script: string): string => changed('in the Pod', script).replaceAll(keeper, inside)
    const runInPod: Commands['runInPod'] = async (_, script) => outputOf(flowOf(there(script)))
    const buried: string[] = []
    const errands = openErrands(
      {
        openInPod: async (_, script) => flowOf(there(script)),
        openAtKeeper: async (script) => flowOf(changed('at the keeper', script)),
        runInPod,
        async doInPod(what, name, script) {
          const { code, stderr } = await runInPod(name, script)
          if (code !== 0) throw new Error(`${what}: ${stderr}`)
        },
        async doAtKeeper(what, script) {
          const { code, stdout, stderr } = await outputOf(flowOf(changed(what, script)))
          if (code !== 0) throw new Error(`${what}: ${stderr}`)
          return stdout.toString()
        },
      },
      () => Promise.resolve(keeper),
      ({ name }) => Promise.resolve(void buried.push(name)),
    )
    return { errands, keeper, inside, buried }
  }
  /** A sender that fails once the other side has made another folder. */
  const breaking = (received: string): string =>
    `cd ${folder}; : >> seen; until new=$(ls -d ${received} 2> /dev/null | grep -vxFf seen); ` +
    'do sleep 0.05; done; echo "$new" >> seen; exit 1'

  test('a Pod that a Job makes for a cancelled task is deleted', async () => {
    const { errands, keeper, buried } = opened()
    writeFileSync(join(keeper, 'tasks/n.task'), 'cancelled 12.5 .\n')
    expect(await errands.deliver(pod())).toBe(true)
    expect(buried).toEqual(['orrery-a-3-x'])
  })

  test('a broken transfer to a Pod leaves one part of the files there, and the next one arrives', async () => {
    let broken = true
    const { errands, inside } = opened((what, script) =>
      broken && what === 'at the keeper' ? breaking('pod/.in-*[!r]') : script,
    )
    const parts = () => readdirSync(inside).filter((name) => name.startsWith('.in-'))
    const found = new Set<string>()
    for (let k = 0; k < 3; k++) {
      await expect(errands.deliver(pod())).rejects.toThrow(/cannot be read/)
      expect(parts()).toHaveLength(1)
      found.add(parts()[0] ?? '')
    }
    expect(found.size).toBe(3)
    broken = false
    expect(await errands.deliver(pod())).toBe(true)
    expect([existsSync(join(inside, '.go')), parts()]).toEqual([true, []])
  })

  test('a broken transfer from a Pod leaves nothing at the keeper; what could not be removed goes before the next one', async () => {
    let [broken, untidy] = [true, false]
    const { errands, keeper, inside } = opened((what, script) => {
      if (untidy && what === 'cannot tidy up') throw new Error('the keeper does not answer')
      return broken && script.includes('NOT_YET') ? breaking('keeper/fetch/n.*[!r]/in') : script
    })
    for (const mark of ['.go', '.over', 'tasks/n.task']) writeFileSync(join(inside, mark), '')
    writeFileSync(join(inside, 'work/n/result'), 'made')
    const other = join(keeper, 'fetch/n.other')
    mkdirSync(other, { recursive: true })
    const parts = () => readdirSync(join(keeper, 'fetch')).filter((name) => name !== 'n.other')
    const fails = () => expect(errands.fetch(pod(terminated(0)))).rejects.toThrow(/cannot be read/)
    await fails()
    expect(parts()).toEqual([])
    untidy = true
    for (let k = 0; k < 2; k++) {
      await fails()
      expect(parts()).toHaveLength(1)
    }
    // Another worker may be fetching the same.
    expect(existsSync(other)).toBe(true)
    broken = false
    expect(await errands.fetch(pod(terminated(0)))).toBe(true)
    expect(readFileSync(join(keeper, 'work/n/result'), 'utf8')).toBe('made')
    expect(readdirSync(join(keeper, 'fetch'))).toEqual([])
  })
})

test('tasks of a lost keeper are lost when their Pods have ended, and no Pod is deleted twice', async () => {
  const pod = (index: number, more: Partial<ApiPod['metadata']> & object, phase = 'Running'): ApiPod => ({
    metadata: {
      name: `orrery-a-${index}-x`,
      labels: {
        'batch.kubernetes.io/job-name': 'orrery-a',
        'batch.kubernetes.io/job-completion-index': String(index),
      },
      ...more,
    },
    spec: { nodeName: 'n1' },
    status: { phase },
  })
  const annotations = { 'orrery.dev/keeper': 'old', 'orrery.dev/names': 'one two three four' }
  const job: ApiJob = { metadata: { name: 'orrery-a', annotations } }
  let pods = [pod(0, {}), pod(1, { deletionTimestamp: '2026-01-01T00:00:00Z' }), pod(2, {}, 'Failed')]
  const deleted: string[] = []
  const at = {
    ...{ paths: { jobs: 'jobs', pods: 'pods' }, ours: '' },
    cluster: {
      list: (path: string) => Promise.resolve({ items: path === 'jobs' ? [job] : pods }),
      request: ({ query }: { query: { labelSelector: string } }) =>
        Promise.resolve(void deleted.push(query.labelSelector)),
    },
  } as unknown as Parameters<typeof openKeeperLoss>[0]
  const courier = { keeperToken: () => Promise.resolve('new') } as Parameters<typeof openKeeperLoss>[1]
  const { strays } = openKeeperLoss(at, courier)
  const states = async (): Promise<string[]> =>
    [...(await strays(['one', 'two', 'three', 'four', 'five']))].map(
      ([name, { state }]) => `${name} ${state}`,
    )
  expect(await states()).toEqual(['one running', 'two running', 'three lost', 'four lost'])
  expect(deleted).toEqual([expect.stringMatching(/job-name=orrery-a,.*index in \(0,2\)/)])
  expect((await strays(['two'])).get('two')).toMatchObject({
    cause: expect.stringMatching(/Pod orrery-a-1-x on node n1/),
  })
  pods = []
  expect(await states()).toEqual(['one lost', 'two lost', 'three lost', 'four lost'])
  expect(deleted).toHaveLength(1)
})

describe('what the cluster writes', () => {
  test('a Pod with its disruption, and one that is none of ours', () => {
    const api: ApiPod = {
      metadata: {
        name: 'orrery-a-3-x',
        labels: {
          'batch.kubernetes.io/job-name': 'orrery-a',
          'batch.kubernetes.io/job-completion-index': '3',
        },
        deletionTimestamp: '2026-01-01T00:00:00Z',
        deletionGracePeriodSeconds: 5,
      },
      spec: { nodeName: 'n1' },
      status: {
        phase: 'Running',
        conditions: [
          {
            type: 'DisruptionTarget',
            status: 'True',
            reason: 'DeletionByTaintManager',
            message: 'Taint manager: deleting',
          },
        ],
        containerStatuses: [
          {
            name: 'task',
            imageID: `host/a@sha256:${'0'.repeat(64)}`,
            containerID: 'containerd://x',
            state: { running: { startedAt: '2026-01-01T00:00:00Z' } },
          },
        ],
      },
    }
    expect(taskPodOf(api)).toMatchObject({
      index: 3,
      deleting: { graceSeconds: 5 },
      disruption: { reason: 'DeletionByTaintManager' },
      engine: 'containerd',
      digest: `sha256:${'0'.repeat(64)}`,
      startedAt: Date.parse('2026-01-01T00:00:00Z') / 1000,
    })
    expect(taskPodOf({ metadata: { name: 'other' } })).toBeUndefined()
  })

  test('lists of indexes', () => {
    expect([0, 1, 2, 3, 4, 7, 8].filter((index) => indexIn('1,3-5,7', index))).toEqual([1, 3, 4, 7])
    expect(indexIn(undefined, 0)).toBe(false)
    expect(indexIn('', 0)).toBe(false)
  })

  test('programs with and without an interpreter', () => {
    const program = (...types: number[]): Buffer => {
      const head = Buffer.alloc(4096)
      head.write('\x7fELF', 'latin1')
      head.set([2, 1], 4)
      head.writeBigUInt64LE(64n, 32)
      head.writeUInt16LE(56, 54)
      head.writeUInt16LE(types.length, 56)
      types.forEach((type, segment) => head.writeUInt32LE(type, 64 + 56 * segment))
      return head
    }
    expect(isStatic(program(1, 1, 6))).toBe(true)
    expect(isStatic(program(6, 3, 1))).toBe(false)
    expect(isStatic(Buffer.from('#!/bin/sh\n'))).toBe(false)
  })
})
