import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from '@jest/globals'
import { run, until } from '../../sites/ground.ts'
import { startSlurm } from '../../sites/slurm.ts'
import type { SlurmSite } from '../../sites/slurm.ts'
import { needs } from '../support/needs.ts'
import { sites } from '../../sites/requirements.ts'

const { afterAll, beforeAll, test } = needs(...sites.slurm)

let site: SlurmSite

beforeAll(async () => {
  site = await startSlurm({ accounting: true, rest: true })
}, 300_000)
afterAll(() => site?.stop())

const login = (script: string) =>
  run('ssh', [...site.sshOptions, `${site.user}@${site.login.address}`, script], { mayFail: true })
const submitted = async (script: string): Promise<string> => {
  const { stdout, stderr } = await login(script)
  const id = /^(\d+)/.exec(stdout)?.[1]
  if (id === undefined) throw new Error(`${script}: ${stdout}${stderr}`)
  return id
}
const stateOf = async (job: string): Promise<string> =>
  /JobState=(\w+)/.exec(await site.slurm(`scontrol show job ${job}`))?.[1] ?? ''
const reaches = (job: string, state: string) =>
  until(`job ${job} is ${state}`, async () => (await stateOf(job)) === state)

test('a job of the account runs on a node, in a home that all nodes see', async () => {
  const job = await submitted(`sbatch --parsable -w n2 -o out --wrap 'hostname; id -un; exit 3'`)
  await reaches(job, 'FAILED')
  await until('its output', async () => (await login('cat out')).stdout === `n2\n${site.user}\n`)
})

test('partitions: short has a limit, drained takes nothing, spare makes place', async () => {
  expect(await site.slurm('sinfo -h -p short -o %l')).toBe('5:00\n')
  expect((await login('sbatch -p drained --wrap true')).stderr).toContain('Required partition not available')
  const spare = await submitted(`sbatch --parsable -p spare -N2 -n8 -o /dev/null --wrap 'sleep 1000'`)
  await reaches(spare, 'RUNNING')
  const wanted = await submitted(`sbatch --parsable -n8 -o /dev/null --wrap true`)
  await reaches(wanted, 'COMPLETED')
  await until('it was requeued', async () =>
    (await site.slurm(`scontrol show job ${spare}`)).includes('Restarts=1'),
  )
  await site.slurm(`scancel ${spare}`)
})

test('commands of this machine reach the cluster, and every call is counted', async () => {
  site.forgetCalls()
  const PATH = `${site.commands}:/usr/bin:/bin`
  await run('/bin/sh', ['-c', `cd ${site.scratch} && sbatch -W -o local --wrap hostname`], {
    environment: { PATH },
  })
  expect(readFileSync(join(site.scratch, 'local'), 'utf8')).toMatch(/^n[12]\n$/)
  expect(site.calls()).toEqual(['sbatch -W -o local --wrap hostname '])
})

test('a command may be made to fail, on this machine and on the login node', async () => {
  site.disturb('squeue', 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
  expect(await login('squeue')).toMatchObject({
    code: 1,
    stderr: 'slurm_load_jobs error: Unable to contact slurm controller\n',
  })
  site.disturb('squeue', undefined)
  expect((await login('squeue -h')).code).toBe(0)
})

test('accounting tells of ended jobs; the account may use its qualities of service', async () => {
  const job = await submitted(`sbatch --parsable --qos high --account lab -o /dev/null --wrap 'exit 7'`)
  await until(
    'sacct knows',
    async () =>
      (await login(`sacct -X -n -P -j ${job} -o state,exitcode,qos,account`)).stdout ===
      'FAILED|7:0|high|lab\n',
  )
})

test('slurmrestd takes a job from who has a token', async () => {
  const headers = {
    'X-SLURM-USER-NAME': site.user,
    'X-SLURM-USER-TOKEN': await site.token(),
    'content-type': 'application/json',
  }
  const job = {
    name: 'rest',
    current_working_directory: site.login.home,
    environment: { PATH: '/bin:/usr/bin' },
    standard_output: '/dev/null',
  }
  const answer = await fetch(`${site.restUrl!}/slurm/v0.0.38/job/submit`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ job, script: '#!/bin/sh\nexit 0\n' }),
  })
  const { job_id } = (await answer.json()) as { job_id: number }
  await reaches(String(job_id), 'COMPLETED')
  expect(
    (
      await fetch(`${site.restUrl!}/slurm/v0.0.38/ping`, {
        headers: { ...headers, 'X-SLURM-USER-TOKEN': 'x' },
      })
    ).ok,
  ).toBe(false)
})

test('controller and accounting come back after their end and know their jobs', async () => {
  const job = await submitted(`sbatch --parsable -o /dev/null --wrap 'sleep 1000'`)
  await reaches(job, 'RUNNING')
  await site.kill('slurmctld', 'TERM')
  await site.kill('slurmdbd')
  await site.start('slurmdbd')
  await site.start('slurmctld')
  await reaches(job, 'RUNNING')
  await site.slurm(`scancel ${job}`)
  await reaches(job, 'CANCELLED')
})

test('a node that crashes loses its job, and is back after a boot', async () => {
  await site.idle()
  const job = await submitted(`sbatch --parsable -w n1 --no-requeue -o /dev/null --wrap 'sleep 1000'`)
  await reaches(job, 'RUNNING')
  const [n1] = site.nodes
  await n1!.crash()
  await site.slurm('scontrol update nodename=n1 state=down reason=crashed')
  await reaches(job, 'NODE_FAIL')
  await n1!.boot()
  await n1!.startSlurmd()
  await site.idle()
}, 180_000)
