import { afterAll, beforeAll, expect } from '@jest/globals'
import { execFile } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { pythonProgram } from '../../bench/python.ts'
import { startCloud, type CloudSite } from '../../sites/cloud.ts'
import { until } from '../failures/programs.ts'
import { needs } from '../support/needs.ts'
import { runFolder } from '../support/run-folder.ts'

/** The protocols of the site of clouds, judged by the clients that their providers publish. */

const { test } = needs('python3-venv')

const aws = { name: 'awscli-1.46.3', packages: ['awscli==1.46.3'], program: 'aws', probe: ['--version'] }
const google = {
  ...{ name: 'google-cloud-compute-1.57.0', packages: ['google-cloud-compute==1.57.0'] },
  ...{ program: 'python', probe: ['-c', 'import google.cloud.compute_v1'] },
}

let site: CloudSite
beforeAll(async () => {
  site = await startCloud({ machines: 'records', bootMs: 50 })
})
afterAll(() => site?.stop())

test("by the AWS CLI machines are run, found, stopped, started and terminated, and refusals have EC2's codes", async () => {
  const program = await pythonProgram(aws)
  const { accessKeyId, secretAccessKey } = site.accessKey
  const environment = {
    ...{ HOME: mkdtempSync(join(runFolder(), 'aws-')), PATH: '/usr/bin:/bin', AWS_PAGER: '' },
    ...{ AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey },
    ...{ AWS_DEFAULT_REGION: site.region, AWS_ENDPOINT_URL: site.endpoint, AWS_MAX_ATTEMPTS: '1' },
  }
  const ask = async (args: string, key: Partial<typeof environment> = {}): Promise<any> => {
    const { stdout } = await promisify(execFile)(program, args.split(' '), {
      env: { ...environment, ...key },
    })
    return stdout.trim() === '' ? undefined : JSON.parse(stdout)
  }
  const codeOf = async (...given: Parameters<typeof ask>): Promise<string> => {
    try {
      await ask(...given)
      return 'none'
    } catch (error) {
      return /\((\S+)\)/.exec((error as { stderr: string }).stderr)?.[1] ?? String(error)
    }
  }
  const run = 'ec2 run-instances --image-id ami-debian12 --instance-type m5.large'
  const tags = 'ResourceType=instance,Tags=[{Key=of,Value=a&b<c>}]'
  const query = '--query Reservations[].Instances[]'
  expect((await ask('sts get-caller-identity')).Account).toMatch(/^\d{12}$/)
  expect([await codeOf(`${run} --dry-run`), site.machines.size]).toEqual(['DryRunOperation', 0])

  const made = await ask(`${run} --count 2 --client-token once --tag-specifications ${tags}`)
  const ids = made.Instances.map((one: any) => one.InstanceId)
  const again = await ask(`${run} --count 2 --client-token once`)
  expect([again.Instances.map((one: any) => one.InstanceId), site.machines.size]).toEqual([ids, 2])
  await ask(`ec2 wait instance-running --instance-ids ${ids.join(' ')}`)
  const found = await ask(`ec2 describe-instances --filters Name=tag:of,Values=a&b<c> ${query}`)
  expect(found.map((one: any) => [one.State.Name, one.Tags])).toEqual(
    ids.map(() => ['running', [{ Key: 'of', Value: 'a&b<c>' }]]),
  )
  expect(new Set(found.map((one: any) => one.PublicIpAddress)).size).toBe(2)
  for (const [filter, count] of [
    ['Name=tag-key,Values=o?', 2],
    ['Name=instance-type,Values=m5.* Name=availability-zone,Values=us-east-1a', 2],
    ['Name=instance-state-name,Values=stopped', 0],
  ] as const)
    expect([filter, await ask(`ec2 describe-instances --filters ${filter} ${query}.InstanceId`)]).toEqual([
      filter,
      ids.slice(0, count),
    ])
  // The client puts the pages together.
  expect(await ask(`ec2 describe-instances --page-size 5 ${query}.InstanceId`)).toEqual(ids)
  const first = await ask('ec2 describe-instances --max-results 1 --no-paginate')
  expect([first.Reservations.length, typeof first.NextToken]).toEqual([1, 'string'])

  const [one, two] = ids
  const changed = (answer: any): string[] => {
    const [{ PreviousState: before, CurrentState: after }] = Object.values(answer).flat() as any[]
    return [before.Name, after.Name]
  }
  expect(changed(await ask(`ec2 stop-instances --instance-ids ${one}`))).toEqual(['running', 'stopped'])
  await ask(`ec2 wait instance-stopped --instance-ids ${one}`)
  expect(changed(await ask(`ec2 start-instances --instance-ids ${one}`))).toEqual(['stopped', 'pending'])
  expect((await ask(`ec2 get-console-output --instance-id ${two}`)).InstanceId).toBe(two)
  await ask(`ec2 terminate-instances --instance-ids ${ids.join(' ')}`)
  await ask(`ec2 wait instance-terminated --instance-ids ${ids.join(' ')}`)
  const images = 'ec2 describe-images --owners 136693071363 --filters'
  expect(await ask(`${images} Name=name,Values=debian-12* --query Images[].Architecture`)).toEqual([
    'x86_64',
    'arm64',
  ])
  const types = await ask('ec2 describe-instance-types --instance-types t3.micro')
  expect(types.InstanceTypes.map((type: any) => type.InstanceType)).toEqual(['t3.micro'])
  const refused = {
    [`ec2 start-instances --instance-ids ${one}`]: 'IncorrectInstanceState',
    'ec2 describe-instances --instance-ids i-0123456789abcdef0': 'InvalidInstanceID.NotFound',
    'ec2 describe-instances --instance-ids nonsense': 'InvalidInstanceID.Malformed',
    'ec2 run-instances --image-id ami-none --instance-type m5.large': 'InvalidAMIID.NotFound',
    'ec2 describe-instances --filters Name=nonsense,Values=1': 'InvalidParameterValue',
  }
  for (const [args, code] of Object.entries(refused)) expect([args, await codeOf(args)]).toEqual([args, code])
  const wrong = { AWS_SECRET_ACCESS_KEY: 'wrong' }
  expect(await codeOf('ec2 describe-instances', wrong)).toBe('AuthFailure')
  expect(await codeOf('sts get-caller-identity', wrong)).toBe('InvalidClientTokenId')
}, 900_000)

test("by Google's client machines are inserted, listed in pages and deleted, and refusals are its own errors", async () => {
  const program = await pythonProgram(google)
  const { endpoint, credential } = site.google
  const child = execFile(program, [join(import.meta.dirname, 'cloud-clients.py')])
  let [text, errors] = ['', '']
  child.stdout?.on('data', (piece: string) => (text += piece))
  child.stderr?.on('data', (piece: string) => (errors += piece))
  child.stdin?.end(JSON.stringify({ endpoint, credential, zone: 'us-east1-b' }))
  await until('its end', 300, () => Promise.resolve(child.exitCode !== null))
  expect([child.exitCode, errors]).toEqual([0, ''])
  const found = JSON.parse(text)
  expect(found).toEqual({
    inserted: ['DONE', 'DONE', 'DONE'],
    taken: expect.stringMatching(/^Conflict .*already exists/),
    form: expect.stringMatching(/^BadRequest .*resource\.name.*Upper/),
    absent: expect.stringMatching(/^NotFound .*instances\/none/),
    listed: [
      ['one', 'two'],
      ['one', 'two'],
      ['one', 'two'],
    ],
    one: ['one', { of: 'client' }, 'us-east1-b'],
    deleted: 'DONE',
    left: ['two'],
  })
}, 900_000)
