/**
 * Takes a workflow through all steps on this machine, as a client of the service: plans it,
 * rehearses it in simulation, runs it, compares the results.
 *
 *   npm run demo [-- OPTIONS]
 *     --keep                     keeps the service up at the end, until Ctrl-C
 *     --workflow mosaic-montage  the same with the astronomers' own toolkit (Debian's `montage` package)
 *     --small                    43 tasks instead of 78, on a tenth of the pixels: a few seconds
 *     --site ssh|slurm|spanning|docker|kubernetes|serverless|cloud
 *                                on hosts by SSH, on a Slurm cluster, on both and this machine, in
 *                                containers, as Jobs, as function calls, on machines that a
 *                                provider makes; the site is started on this machine
 *     --storages                 moves data between a folder, an S3 server and an SSH host instead
 *     --loopback                 with --site ssh and --storages: hosts that need no root, each a port of this machine
 *     --sif                      with --site slurm: the tasks run from a SIF file that the service makes
 *     --archive                  carries all records to a second service on an empty folder, and
 *                                shows the same run, plan and lineage there
 *     --output FOLDER            where the files are left (demo-output)
 *
 * The service's data is kept in SERVICE_DATA_DIR, else beside the service's own folder, so a second
 * start is quick. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 128 + signal number
 * when it was stopped.
 */
import { constants } from 'node:os'
import path from 'node:path'
import { ArgumentError, readArguments } from '../src/programs/arguments.ts'
import { ConfigError, configFromEnvironment } from '../src/config.ts'
import { ApiError } from './demo/api.ts'
import { endTasks } from './demo/leftovers.ts'
import { openOutput } from './demo/output.ts'
import { openScreen } from './demo/screen.ts'
import { siteKinds, sitesMissing, sitesNeed } from './demo/sites.ts'
import { tellStorages } from './demo/storages.ts'
import { RunFailed, tell, type Options, type Stage } from './demo/story.ts'
import { awaitEnd } from './demo/watch.ts'

const usage = `npm run demo -- [OPTIONS]     plans, simulates and runs a workflow on this machine, and compares
  --keep                     keeps the service up at the end, until Ctrl-C
  --small                    43 tasks instead of 78, on a tenth of the pixels
  --workflow NAME            mosaic (default), or mosaic-montage with the astronomers' own toolkit
  --site KIND                runs at ${siteKinds.join(', ')}; the site is started on this machine
  --storages                 moves data between a folder, an S3 server and an SSH host instead of a workflow
  --loopback                 with --site ssh and --storages: hosts on loopback, for accounts without root
  --sif                      with --site slurm: the tasks run from a SIF file that the service makes
  --archive                  carries all records to a second service, and shows the same run and lineage there
  --output FOLDER            where the files are left (demo-output)
npm run demo -- --help | --version
`

const options = readArguments(
  {
    usage,
    options: {
      keep: { type: 'boolean', default: false },
      archive: { type: 'boolean', default: false },
      small: { type: 'boolean', default: false },
      workflow: { type: 'string', default: 'mosaic' },
      site: { type: 'string' },
      storages: { type: 'boolean', default: false },
      loopback: { type: 'boolean', default: false },
      sif: { type: 'boolean', default: false },
      output: { type: 'string', default: path.resolve(import.meta.dirname, '../demo-output') },
    },
  },
  ({
    values: { keep, archive, small, workflow, site, storages, loopback, sif, output },
  }): Options & {
    storages: boolean
    loopback: boolean
  } => {
    if (workflow !== 'mosaic' && workflow !== 'mosaic-montage')
      throw new ArgumentError(`--workflow ${workflow}: give mosaic or mosaic-montage`)
    if (small && workflow !== 'mosaic')
      throw new ArgumentError('--small: only the mosaic has a small variant')
    const kind = siteKinds.find((each) => each === site)
    if (site !== undefined && kind === undefined)
      throw new ArgumentError(`--site ${site}: give ${siteKinds.join(', ')}`)
    if (kind !== undefined && workflow !== 'mosaic')
      throw new ArgumentError('--site: only the mosaic has documents for other sites')
    if (storages && (site !== undefined || workflow !== 'mosaic' || archive))
      throw new ArgumentError('--storages: it goes with --small, --loopback, --keep and --output only')
    if (loopback && kind !== 'ssh' && !storages)
      throw new ArgumentError('--loopback: only --site ssh and --storages have such hosts')
    if (sif && kind !== 'slurm') throw new ArgumentError('--sif: only --site slurm runs SIF files')
    return {
      keep,
      archive,
      small,
      workflow,
      storages,
      loopback,
      ...(kind === undefined ? {} : { site: { kind, loopback, sif } }),
      output: path.resolve(output),
    }
  },
)

/** The configuration. Ends the program where it is invalid. */
const configured = () => {
  try {
    const config = configFromEnvironment()
    return { config, dataDir: process.env['SERVICE_DATA_DIR'] ? config.dataDir : `${config.dataDir}-demo` }
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`${error.message}\n`)
    process.exit(2)
  }
}

/**
 * A terminal sends Ctrl-C to the whole group and npm passes it on as well, so one request to stop
 * arrives several times.
 */
const sameWishMs = 1000
const cancelWithinMs = 15_000

const { dataDir, config } = configured()
const site = options.storages
  ? ({ kind: 'ssh', loopback: options.loopback, sif: false } as const)
  : options.site
if (site !== undefined) {
  process.stdout.write(`${sitesNeed(site)}\n`)
  const missing = await sitesMissing(site)
  if (missing !== undefined) {
    process.stderr.write(`--site ${site.kind} cannot be had on this machine: ${missing}\n`)
    process.exit(2)
  }
}
const screen = openScreen(process.stdout)
const stop = new AbortController()
const stage: Stage = {}
let signalled: { number: number; at: number } | undefined

const force = async (): Promise<never> => {
  screen.say('ended by force')
  stage.elsewhere?.kill()
  stage.service?.kill()
  await endTasks(dataDir)
  process.exit(128 + (signalled?.number ?? 0))
}
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.on(name, () => {
    if (signalled === undefined) {
      signalled = { number: constants.signals[name], at: performance.now() }
      screen.heading(
        `${stage.kept === true ? 'Stopping' : 'Stopping before the end'} (Ctrl-C once more forces it)`,
      )
      stop.abort(new Error(name))
    } else if (performance.now() - signalled.at > sameWishMs) void force()
  })

/**
 * Stops everything: first the run, which ends its tasks, then the service, which ends its servers.
 */
const clear = async (): Promise<void> => {
  const { service, api, openRun } = stage
  if (service === undefined) return
  if (api !== undefined && openRun !== undefined) {
    const unstoppable = api.unstoppable(cancelWithinMs)
    try {
      await unstoppable.post(`/execution-runs/${encodeURIComponent(openRun)}/cancel/`)
      screen.say(`the run is ${await awaitEnd(unstoppable, openRun)}`)
    } catch (error) {
      // The run was never accepted, or is over already.
      if (!(error instanceof ApiError && [404, 409].includes(error.status)))
        screen.say(`the run could not be cancelled, its tasks are ended without it: ${messageOf(error)}`)
    }
  }
  await service.stop()
  await endTasks(dataDir)
  await stage.sites?.stop()
  screen.say('the service is stopped, nothing runs any more')
}

const messageOf = (error: unknown): string => {
  if (!(error instanceof Error)) return String(error)
  // fetch reports only that it failed. Its cause holds the reason.
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message
}

let code = 0
try {
  const output = openOutput(options.output)
  const teller = { options, dataDir, config, screen, stop: stop.signal, stage, output }
  await (options.storages ? tellStorages({ ...teller, loopback: options.loopback }) : tell(teller))
} catch (error) {
  if (!stop.signal.aborted) {
    code = 1
    screen.heading('The demo failed')
    screen.say(messageOf(error))
    if (!(error instanceof RunFailed) && stage.logFile !== undefined)
      screen.say(`log of the service: ${stage.logFile}`)
  }
} finally {
  await clear()
}
process.exit(signalled === undefined ? code : 128 + signalled.number)
