/**
 * The daemon of one checkout, for `against.ts`: a child process with IPC, `node against-side.ts
 * CHECKOUT full|tiny`. It starts that checkout's daemon by that checkout's own `bench/` modules, and
 * answers each message, the name of a measurement, with the number that was measured.
 */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import type * as dags from './dag.ts'
import type * as daemons from './daemon.ts'
import type * as plans from './planned-run.ts'
import type { Measurement } from './against.ts'

const [checkout = '', size] = process.argv.slice(2)
const isTiny = size === 'tiny'
const chainLength = isTiny ? 4 : 40
const loadSeconds = isTiny ? 0.2 : 2
const connections = 16

const [{ startDaemon }, { chainDag, montageDag }, { plan, timedRun }] = await Promise.all([
  import(join(checkout, 'bench/daemon.ts')) as Promise<typeof daemons>,
  import(join(checkout, 'bench/dag.ts')) as Promise<typeof dags>,
  import(join(checkout, 'bench/planned-run.ts')) as Promise<typeof plans>,
])
const daemon = await startDaemon()
const noop = {
  command: () => ({ entrypoint: 'true' }),
  runtime: { configuration: { launch: 'none' } },
}
const montage = await plan(daemon, { name: 'montage', dag: montageDag(isTiny).dag, lanes: 256, ...noop })
const chain = await plan(daemon, { name: 'chain', dag: chainDag(chainLength), lanes: 1, ...noop })
// What the reads read.
await timedRun(daemon, chain, 'small')
await timedRun(daemon, montage, 'large')

let runs = 0
const secondsOf = async (planned: plans.Planned): Promise<number> =>
  (await timedRun(daemon, planned, `run-${String(++runs)}`)).seconds
const millisecondsPerRequest = async (path: string): Promise<number> => {
  const { stdout } = await promisify(execFile)(process.execPath, [
    join(checkout, 'bench/reads/load.ts'),
    daemon.facts().baseUrl + path,
    String(connections),
    String(loadSeconds),
  ])
  return 1_000 / (JSON.parse(stdout) as { perSecond: number }).perSecond
}
const measure: Record<Measurement, () => Promise<number>> = {
  'montage-noop': () => secondsOf(montage),
  chain: async () => ((await secondsOf(chain)) * 1_000) / chainLength,
  'read-environment': () => millisecondsPerRequest('/environments/chain/'),
  'read-small-run': () => millisecondsPerRequest('/execution-runs/small/'),
  'read-large-run': () => millisecondsPerRequest('/execution-runs/large/'),
}

process.on('message', (name: Measurement | 'stop') => {
  void (async () => {
    if (name === 'stop') {
      await daemon.stop()
      process.disconnect()
    } else process.send?.(await measure[name]())
  })()
})
process.send?.('ready')
