import { spawn } from 'node:child_process'
import { existsSync, readFileSync, readdirSync, rmSync } from 'node:fs'
import { request } from 'node:https'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { run, until } from '../../sites/ground.ts'
import { startKubernetes } from '../../sites/kubernetes.ts'
import type { KubernetesSite } from '../../sites/kubernetes.ts'
import { kubernetesStartMs } from '../../sites/kubernetes-build.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.kubernetes)

let site: KubernetesSite

beforeAll(async () => {
  // Where every node is silent a cluster suspects itself and gives nothing up.
  site = await startKubernetes({ fakeNodes: 5, nodeGraceSeconds: 15 })
}, kubernetesStartMs)
afterAll(() => site?.stop(), 120_000)

interface JobOptions {
  pod?: Readonly<Record<string, unknown>>
  container?: Readonly<Record<string, unknown>>
  spec?: Readonly<Record<string, unknown>>
}
const job = (name: string, script: string, { pod, container, spec }: JobOptions = {}) =>
  site.call('POST', `/apis/batch/v1/namespaces/${site.namespace}/jobs`, {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name },
    spec: {
      backoffLimit: 0,
      ...spec,
      template: {
        spec: {
          restartPolicy: 'Never',
          terminationGracePeriodSeconds: 1,
          containers: [
            { name: 'main', image: site.images.busybox, command: ['sh', '-c', script], ...container },
          ],
          ...pod,
        },
      },
    },
  })
const ends = async (name: string, condition: 'Complete' | 'Failed' = 'Complete'): Promise<void> => {
  await site.kubectl('wait', `--for=condition=${condition}`, `job/${name}`, '--timeout=120s')
}
interface Pod {
  metadata: { name: string; deletionTimestamp?: string }
  status: { phase: string }
}
const podsOf = async (name: string): Promise<Pod[]> => {
  const path = `/api/v1/namespaces/${site.namespace}/pods?labelSelector=job-name%3D${name}`
  return ((await site.call('GET', path)) as { items: Pod[] }).items
}
const runs = async (name: string): Promise<string> => {
  let pod: Pod | undefined
  await until(`a Pod of ${name} runs`, async () => {
    pod = (await podsOf(name)).find(
      ({ status, metadata }) => status.phase === 'Running' && metadata.deletionTimestamp === undefined,
    )
    return pod !== undefined
  })
  return pod!.metadata.name
}

/** What a client sees that trusts the cluster's authority and has a token. */
const ask = (token: string, path: string, method = 'GET'): Promise<{ status: number; text: string }> =>
  new Promise((resolve, reject) => {
    const options = {
      method,
      ca: site.certificateAuthority,
      headers: { authorization: `Bearer ${token}` },
      timeout: 30_000,
    }
    const asked = request(new URL(path, site.server), options, (answer) => {
      let text = ''
      answer.on('data', (part: Buffer) => (text += part.toString()))
      answer.once('end', () => resolve({ status: answer.statusCode ?? 0, text }))
    })
    asked.once('error', reject)
    asked.once('timeout', () => asked.destroy(new Error('no answer')))
    asked.end()
  })
const jobsPath = () => `/apis/batch/v1/namespaces/${site.namespace}/jobs`

test('a Job runs in a container and leaves its log, its end and its files in the shared volume', async () => {
  const work = { volumes: [{ name: 'work', persistentVolumeClaim: { claimName: site.volume.claim } }] }
  const mounted = { volumeMounts: [{ name: 'work', mountPath: '/work' }] }
  await job(
    'hello',
    `echo kept > /work/hello; ls /work; wget -qO- http://${site.registry.address}/v2/bb/tags/list`,
    {
      pod: work,
      container: mounted,
    },
  )
  await ends('hello')
  expect(await site.kubectl('logs', 'job/hello')).toBe('hello\n{"name":"bb","tags":["1"]}\n')
  expect(readFileSync(join(site.volume.folder, 'hello'), 'utf8')).toBe('kept\n')
  await job('fails', 'exit 3')
  await ends('fails', 'Failed')
}, 180_000)

test('an account has the rights that it was given, in its namespace, until its token has ended', async () => {
  const token = await site.token()
  expect((await ask(token, jobsPath())).status).toBe(200)
  expect((await ask(token, '/api/v1/nodes')).status).toBe(200)
  expect((await ask(token, '/api/v1/namespaces/default/pods')).status).toBe(403)
  await site.account('reader', [{ apiGroups: ['batch'], resources: ['jobs'], verbs: ['get', 'list'] }])
  const reader = await site.token('reader')
  await until('its rights are in force', async () => (await ask(reader, jobsPath())).status === 200)
  expect((await ask(reader, jobsPath(), 'DELETE')).text).toContain('cannot deletecollection resource')
  expect((await ask(await site.token('orrery', -60), jobsPath())).status).toBe(401)
  const revoked = await site.token()
  await site.revokeToken(revoked)
  expect((await ask(revoked, jobsPath())).status).toBe(401)
}, 120_000)

test('requests are told apart by who made them, and those of the cluster itself are left out', async () => {
  const token = await site.token()
  site.forgetRequests()
  await ask(token, jobsPath())
  await site.kubectl('get', 'pods')
  const user = `system:serviceaccount:${site.namespace}:orrery`
  const requests = site.requests()
  expect(requests.filter((one) => one.user === user)).toMatchObject([
    { verb: 'list', resource: 'jobs', namespace: site.namespace, code: 200 },
  ])
  expect(requests.find((one) => one.user === 'admin' && one.resource === 'pods')).toMatchObject({
    verb: 'list',
    userAgent: expect.stringContaining('kubectl'),
  })
  expect(new Set(requests.map((one) => one.user))).toEqual(new Set([user, 'admin']))
}, 60_000)

test('a node without power is found out, and takes its part again after it is back', async () => {
  const [node] = site.nodes
  await job('survives', 'sleep 1000', { spec: { backoffLimit: 1 } })
  const before = await runs('survives')
  await node!.crash()
  await until('the Pod is given up', async () =>
    (await podsOf('survives')).some(
      ({ metadata }) => metadata.name === before && metadata.deletionTimestamp !== undefined,
    ),
  )
  await node!.boot()
  await node!.startKubelet()
  expect(await runs('survives')).not.toBe(before)
}, 240_000)

/** Processes that live in the mounts of a site: their own view of them is the only mark. */
const livingWith = (folder: string): string[] =>
  readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/mountinfo`, 'utf8').includes(folder)
    } catch {
      return false
    }
  })
const cgroupsOf = async (site: string): Promise<string> =>
  (await run('find', ['/sys/fs/cgroup', '-name', `*${site}*`])).stdout

test('nothing is left when the owner is killed while Pods run: process, mount, network, cgroup, file', async () => {
  const file = join(tmpdir(), `kubernetes-owner-${process.pid}`)
  const owner = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { startKubernetes } from ${JSON.stringify(new URL('../../sites/kubernetes.ts', import.meta.url).href)}
       import { renameSync, writeFileSync } from 'node:fs'
       const site = await startKubernetes()
       await site.kubectl('create', 'job', 'endless', '--image', site.images.busybox, '--', 'sleep', '100000')
       await site.kubectl('wait', '--for=jsonpath={.status.ready}=1', 'job/endless', '--timeout=120s')
       writeFileSync(${JSON.stringify(`${file}.new`)}, JSON.stringify({ folder: site.folder,
          server: site.server, cgroup: site.cgroups[0] }))
       renameSync(${JSON.stringify(`${file}.new`)}, ${JSON.stringify(file)})
       setInterval(() => {}, 1000)`,
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )
  const exited = new Promise((resolve) => owner.once('exit', resolve))
  try {
    await until('the site', async () => existsSync(file) || owner.exitCode !== null, undefined, 300_000)
    const { folder, server, cgroup } = JSON.parse(readFileSync(file, 'utf8')) as {
      folder: string
      server: string
      cgroup: string
    }
    const place = folder.replace(tmpdir(), '')
    expect(livingWith(place).length).toBeGreaterThan(8)
    expect(await cgroupsOf(cgroup)).not.toBe('')
    owner.kill('SIGKILL')
    await exited
    await until('its processes are gone', async () => livingWith(place).length === 0)
    await until('its folder is gone', async () => !existsSync(folder))
    await until(
      'its network is gone',
      async () =>
        !(await run('ip', ['-o', '-4', 'addr'])).stdout.includes(
          ` ${new URL(server).hostname.replace(/\d+$/, '')}`,
        ),
    )
    await until('its cgroups are gone', async () => (await cgroupsOf(cgroup)) === '')
  } finally {
    owner.kill('SIGKILL')
    rmSync(file, { force: true })
  }
}, 480_000)
