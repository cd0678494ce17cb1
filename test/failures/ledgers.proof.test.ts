import { expect } from '@jest/globals'
import { setTimeout as pause } from 'node:timers/promises'
import { startLoopbackSsh } from '../../sites/loopback.ts'
import { sites } from '../../sites/requirements.ts'
import { startSlurm } from '../../sites/slurm.ts'
import { needs } from '../support/needs.ts'
import { connectionTo, makeVaultKeyFile, onCluster, onHost } from '../support/reach.ts'
import { ledgerTasks, playRounds, type RoundsSite } from './rounds.ts'

const { test } = needs('root')
const overSsh = needs('root', ...sites.sshd).test
const onSlurm = needs(...sites.slurm).test

/**
 * Every attempt writes its start and its end into a ledger of its site, while processes of the
 * service and the site fail by seed: none is started twice, no two of an activity are alive at once,
 * and each activity ends once. `ORRERY_LEDGER_ROUNDS`: rounds at each kind of site, 200 by default.
 */
const rounds = Number(process.env['ORRERY_LEDGER_ROUNDS'] ?? 200)
const hours = 3_600_000
const say = (line: string): void => void process.stderr.write(`${line}\n`)

/** @param tasks of a run */
const play = async (seed: number, tasks: number, site?: RoundsSite): Promise<void> => {
  const played = await playRounds({
    ...{ seed, rounds, say, runSeconds: 300 },
    tasks: (ledger, random) => ledgerTasks(tasks, ledger, random),
    ...(site === undefined ? {} : { site }),
  })
  expect(played.flatMap(({ violations }) => violations)).toEqual([])
  expect(played).toHaveLength(rounds)
}

test('on this machine nothing is done twice, whatever dies', () => play(91, 60), 6 * hours)

overSsh(
  'at an SSH host nothing is done twice, whatever dies',
  async () => {
    await using ssh = await startLoopbackSsh()
    const [host] = ssh.hosts
    if (host === undefined) throw new Error('the site has one host')
    const ledger = `${host.folder}/ledger`
    await play(92, 40, {
      place: onHost('host'),
      connections: [connectionTo('host', host, 'hosts')],
      environment: {
        SERVICE_VAULT_KEY_FILE: makeVaultKeyFile(),
        SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true',
      },
      ledger: { at: ledger, seen: ledger },
      introduce: ({ post }) => post('/ssh-keys/import/', { id: 'hosts', privateKey: ssh.key.privateKey }),
      outage: async (forMs) => {
        await host.stopSshd()
        host.dropSessions()
        await pause(forMs)
        await host.startSshd()
      },
    })
  },
  6 * hours,
)

onSlurm(
  'on a Slurm cluster nothing is done twice, whatever dies',
  async () => {
    await using slurm = await startSlurm({ nodes: 2 })
    const { login } = slurm
    const ledger = `${login.home}/ledger`
    await play(93, 25, {
      place: onCluster('cluster'),
      connections: [connectionTo('cluster', login, 'cluster')],
      environment: { SERVICE_VAULT_KEY_FILE: makeVaultKeyFile() },
      ledger: { at: ledger, seen: login.see(ledger) },
      introduce: ({ post }) => post('/ssh-keys/import/', { id: 'cluster', privateKey: slurm.key.privateKey }),
      outage: async (forMs) => {
        await slurm.kill('slurmctld', 'TERM')
        await login.stopSshd()
        await login.dropSessions()
        await pause(forMs)
        await slurm.start('slurmctld')
        await login.startSshd()
      },
    })
  },
  12 * hours,
)
