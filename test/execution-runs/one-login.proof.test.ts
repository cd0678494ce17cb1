import { afterAll, afterEach, beforeAll, expect, test } from '@jest/globals'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { z } from 'zod'
import { sql } from '../../src/db/sql.ts'
import { dataFolder, readyOf, removeFolder, startProgram, type Program } from '../failures/programs.ts'
import { eventually, makeVaultKeyFile, onHost } from '../support/reach.ts'
import { openService, temporalAddress, type TestService } from '../support/service.ts'
import { startSshServer, type SshServer } from '../support/ssh-server.ts'
import { makeWorld } from '../support/worlds.ts'

/**
 * Two processes of a fleet and one login of a person: whichever has the site, and whichever was
 * logged in at, runs go on over that one.
 */

let service: TestService
let vaultKeyFile: string
let server: SshServer
let code: string
const programs: { program: Program; folder: string }[] = []

beforeAll(async () => {
  vaultKeyFile = makeVaultKeyFile()
  service = await openService({
    environment: { SERVICE_VAULT_KEY_FILE: vaultKeyFile, SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' },
  })
}, 120_000)
afterEach(async () => {
  for (const { program, folder } of programs.splice(0)) {
    program.child.kill('SIGKILL')
    await program.ended
    removeFolder(folder)
  }
  await server?.close()
}, 60_000)
afterAll(async () => {
  await service?.[Symbol.asyncDispose]()
}, 60_000)

/** A program of the same fleet, as if on a host of its own. */
const joined = async (kind: 'main' | 'worker'): Promise<{ program: Program; folder: string }> => {
  const folder = dataFolder()
  const program = await startProgram(kind, {
    SERVICE_DATA_DIR: folder,
    SERVICE_LISTEN_ADDRESS: '127.0.0.1:0',
    SERVICE_DATABASE_URL: service.databaseUrl,
    SERVICE_TEMPORAL_ADDRESS: temporalAddress(),
    SERVICE_TEMPORAL_NAMESPACE: service.namespace,
    SERVICE_HOST_ID: `second-${kind}`,
    SERVICE_VAULT_KEY_FILE: vaultKeyFile,
    SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
  })
  programs.push({ program, folder })
  return { program, folder }
}

const startServer = async (name: string): Promise<void> => {
  code = '111111'
  server = await startSshServer({
    second: {
      rounds: [{ prompts: [{ prompt: 'Code: ', echo: false }], judge: ([given]) => given === code }],
    },
  })
  await service.post('/ssh-keys/import/', { id: name, privateKey: server.privateKey })
}

/**
 * A run of four tasks, on lanes and by a connection of its own; the logins of such connections are
 * the same.
 */
const start = async (name: string, number: number, root: string, seconds: number): Promise<string> => {
  const id = `${name}-${String(number)}`
  const { planId } = await makeWorld(service, {
    name: id,
    tasks: Array.from({ length: 4 }, (_one, index) => ({
      name: `t${String(index)}`,
      run: `echo "$AKOFLOW_RUN_ID $AKOFLOW_ACTIVITY_ID" >> ${root}/ledger; sleep ${String(seconds)}`,
    })),
    cores: [4],
    places: [onHost(`${id}-c`, { workDirectory: root })],
    connections: [
      {
        id: `${id}-c`,
        name: `${id}-c`,
        type: 'ssh',
        endpoint: `127.0.0.1:${String(server.port)}`,
        username: 'root',
        credentialRef: `vault:ssh-key/${name}`,
        configuration: { knownHosts: `[127.0.0.1]:${String(server.port)} ${server.hostKey}` },
      },
    ],
  })
  await service.post('/execution-runs/', { id, schedulePlanId: planId, mode: 'real' })
  await eventually('the site is taken', 60, async () => ((await holderOf(id)) ?? '') !== '')
  return id
}

const login = (name: string): string => `/environment-connections/${name}-0-c/login/`
const asked = (name: string): Promise<any> =>
  eventually('the prompt', 60, async () => {
    const state = await service.get(login(name))
    return state.state === 'waiting for login' && state
  })
const holderOf = async (run: string): Promise<string | undefined> =>
  (
    await service.db.maybe(
      z.object({ holder: z.string() }),
      sql`select holder from site_leases where execution_run_id = ${run}`,
    )
  )?.holder
/** Starts runs until the sites of two are worked by different processes, and gives all. */
const runsAtBoth = async (name: string, root: string, seconds: number): Promise<string[]> => {
  const runs: string[] = []
  for (let holders = new Set(); holders.size < 2; holders = new Set(await Promise.all(runs.map(holderOf)))) {
    expect(runs.length).toBeLessThan(20)
    runs.push(await start(name, runs.length, root, seconds))
  }
  return runs
}
const states = async (runs: readonly string[], status: string): Promise<number> => {
  const totals = await Promise.all(
    runs.map(
      async (id) => (await service.get(`/execution-runs/${id}/activities/?status=${status}`)).total as number,
    ),
  )
  return totals.reduce((sum, total) => sum + total, 0)
}
const allCompleted = async (runs: readonly string[], root: string): Promise<void> => {
  for (const id of runs) {
    const detail = await service.finished(id, 150)
    expect([detail.run.failureReason, detail.run.status]).toEqual([undefined, 'completed'])
    expect(detail.activities.every(({ attempt }: any) => attempt === 1)).toBe(true)
  }
  const lines = readFileSync(join(root, 'ledger'), 'utf8').trim().split('\n')
  expect([lines.length, new Set(lines).size]).toEqual([runs.length * 4, runs.length * 4])
}

test('sites of two processes run over one login; when it is cut all wait, and one login more ends all', async () => {
  const root = `${service.dataDir}/both`
  await Promise.all([startServer('both'), joined('worker')])
  const runs = await runsAtBoth('both', root, 15)
  await asked('both')
  expect(await service.post(login('both'), { answers: [code] })).toMatchObject({ state: 'connected' })
  await eventually('all in flight', 90, async () => (await states(runs, 'running')) === runs.length * 4)
  expect(server.logins).toBe(1)

  code = '222222'
  server.cut()
  await asked('both')
  await eventually('both processes wait', 60, async () => {
    const { waiting } = await service.db.one(
      z.object({ waiting: z.number() }),
      sql`select count(distinct process) filter (where waiting) as waiting from login_holders`,
    )
    return waiting === 2
  })
  expect(await states(runs, 'failed')).toBe(0)
  expect(await service.post(login('both'), { answers: [code] })).toMatchObject({ state: 'connected' })
  await allCompleted(runs, root)
  expect(server.logins).toBe(2)
}, 420_000)

test('the process that was logged in at is killed with tasks in flight: a login at another one, and every attempt ran once', async () => {
  const root = `${service.dataDir}/killed`
  const [second] = await Promise.all([joined('main'), startServer('killed')])
  const { baseUrl } = await readyOf(second.program, second.folder)
  const runs = await runsAtBoth('killed', root, 20)
  const there = async (answers?: string[]): Promise<any> => {
    const answer = await fetch(
      baseUrl + login('killed'),
      answers === undefined
        ? {}
        : {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify({ answers }),
          },
    )
    return answer.json()
  }
  await eventually('the prompt there', 60, async () => (await there()).state === 'waiting for login')
  expect(await there([code])).toMatchObject({ state: 'connected' })
  // Here it is the login of the other process.
  await eventually(
    'the login is known here',
    5,
    async () => (await service.get(login('killed'))).state === 'connected',
  )
  await eventually('all in flight', 90, async () => (await states(runs, 'running')) === runs.length * 4)
  expect(server.logins).toBe(1)

  code = '222222'
  second.program.child.kill('SIGKILL')
  await second.program.ended
  await asked('killed')
  expect(await states(runs, 'failed')).toBe(0)
  expect(await service.post(login('killed'), { answers: [code] })).toMatchObject({ state: 'connected' })
  await allCompleted(runs, root)
  expect(server.logins).toBe(2)
}, 420_000)
