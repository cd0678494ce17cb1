import { spawnSync } from 'node:child_process'
import { existsSync, rmSync, symlinkSync } from 'node:fs'
import { availableParallelism, cpus, totalmem } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Config } from '../../src/config.ts'
import { mosaicWorkflow, smallShape } from '../mosaic/generate-workflow.ts'
import { measureMosaic, profilesOf, type TypeTime } from '../mosaic/measure.ts'
import { openApi, type Api } from './api.ts'
import { showElsewhere } from './archive.ts'
import { awaitBuilt } from './built.ts'
import { bandOf, linesOf, type Task } from './comparison.ts'
import { onMachine, readDocuments, withSuffix, type Documents, type Machine } from './documents.ts'
import { deliveryLines, fromBuild, makeImage } from './image.ts'
import { folderSize } from './folder-size.ts'
import type { Output } from './output.ts'
import { lineageTree, madeBy } from './provenance.ts'
import { awaitQuiet } from './quiet.ts'
import {
  candidateTable,
  currencyText,
  movedText,
  profileTable,
  receiptTable,
  resourceTable,
  runText,
  siteTable,
  sumTable,
  taskTable,
  wallText,
  whereTheTimeWent,
} from './report.ts'
import { duration, type Screen } from './screen.ts'
import { startService, type RunningService } from './service.ts'
import { makesImage, startSites, type ChosenSite, type Sites } from './sites.ts'
import { awaitEnd, awaitPlanned, watchRun } from './watch.ts'

export interface Options {
  keep: boolean
  /** Carries the instance to a second service and shows it there. */
  archive: boolean
  small: boolean
  workflow: 'mosaic' | 'mosaic-montage'
  /** A site other than this machine. */
  site?: ChosenSite
  output: string
}

/** The parts that a stop has to shut down at this moment. */
export interface Stage {
  service?: RunningService
  /** The second service, which shows the archive. */
  elsewhere?: RunningService | undefined
  sites?: Sites
  logFile?: string
  api?: Api
  openRun?: string
  /** The demo is complete, and the service stays up because the user requested it. */
  kept?: boolean
}

export interface Teller {
  options: Options
  dataDir: string
  config: Config
  screen: Screen
  stop: AbortSignal
  stage: Stage
  output: Output
}

/**
 * A run that did not complete. The message holds the reason, with the end of the failed activity's
 * output.
 */
export class RunFailed extends Error {}

const examples = path.resolve(import.meta.dirname, '..')

/**
 * The demo from the start of the service to its output files.
 * @throws RunFailed; ApiError; Error when the service does not start; any error when `stop` is
 *   aborted
 */
export const tell = async (teller: Teller): Promise<void> => {
  const { options, screen, stage, output } = teller
  const stepCount = options.site === undefined ? 6 : makesImage(options.site) ? 10 : 9
  const startedAt = performance.now()
  const secondsPerStep: Record<string, number> = {}
  /** One step under its heading, with its time. */
  const step = async <T>(name: string, heading: string, work: () => Promise<T>): Promise<T> => {
    screen.heading(`${Object.keys(secondsPerStep).length + 1}/${stepCount}  ${heading}`)
    const from = performance.now()
    const result = await work()
    const seconds = (performance.now() - from) / 1000
    secondsPerStep[name] = seconds
    screen.say(`done in ${duration(seconds)}`)
    return result
  }
  assertPrograms(options.workflow)
  const machine: Machine = { cores: availableParallelism(), memoryBytes: totalmem() }
  const documents = documentsOf(options, output.run)

  const service = await step('start', 'Start PostgreSQL, Temporal, the API and a worker', () => start(teller))
  const api = openApi(service.ready.baseUrl, teller.config.apiToken, teller.stop)
  stage.api = api
  await cancelEarlierRuns(api, screen)
  const times = await step(
    'measure',
    `Measure each type of activity on this machine (${machine.cores} cores)`,
    () => measure(teller, documents, machine),
  )
  const { site } = options
  const sites =
    site === undefined
      ? undefined
      : await step('site', 'Start the site on this machine', () => startSite(teller, site))
  if (sites?.image !== undefined) documents.workflow.spec.image = sites.image
  const { builder } = sites ?? {}
  if (builder !== undefined) {
    const image = await step('image', 'Make the image of the tasks', () =>
      makeImage(api, { ...builder, folder: path.join(examples, 'mosaic/image'), run: output.run }, teller),
    )
    documents.workflow = fromBuild(documents.workflow, image)
  }
  if (sites !== undefined)
    documents.environment = await step('connect', 'Make a credential and try the connections', () =>
      connect(teller, api, documents, sites),
    )
  const versionId = await step('post', 'Post the documents', () =>
    post(api, screen, documents, machine, times),
  )
  if (sites !== undefined)
    await step('discover', 'Discover what is behind the connections', () =>
      documents.targets.length > 0 ? readOffers(api, screen, documents) : discover(api, screen, documents),
    )
  const plan = await step('plan', 'Plan', () => choosePlan(teller, api, versionId, documents))
  const simulated = await step('simulation', 'Rehearse the plan in simulation', () =>
    execute(teller, api, plan, 'simulation'),
  )
  const real = await step('real', 'Run the plan', () => execute(teller, api, plan, 'real'))

  screen.heading('Planned, simulated, measured')
  const figures = await compare(teller, api, documents, { machine, times, plan, simulated, real })

  if (site !== undefined) {
    screen.heading('What ran where')
    const detail = await api.get(`/execution-runs/${real.id}/?attempts=all`)
    const { activities, dataTransfers } = detail
    for (const line of siteTable(activities)) screen.say(line)
    for (const line of deliveryLines(detail)) screen.say(line)
    screen.say('')
    screen.say(movedText(dataTransfers))
  }

  if (documents.targets.length > 0) {
    screen.heading('The receipt')
    for (const line of receiptTable(await finalReceipt(api, real.id), teller.config.currency))
      screen.say(line)
  }

  const runPath = `/execution-runs/${real.id}`
  screen.heading('What made the picture')
  for (const line of await madeBy(api, real.id, 'mosaic.png')) screen.say(line)
  screen.say('')
  for (const line of await lineageTree(api, real.id, 'mosaic.png')) screen.say(line)

  screen.heading('To look at')
  const picture = await api.fetch(`${runPath}/activities/picture/outputs/mosaic.png`, '*/*')
  screen.say(`picture   ${output.write('mosaic.png', picture)}`)
  const timeline = await api.fetch(`${runPath}/timeline/?with=${simulated.id}`, 'text/html')
  screen.say(`timeline  ${output.write('timeline.html', timeline)}`)
  const crate = await api.fetch(`${runPath}/crate/?data=outputs`, 'application/zip')
  screen.say(`run crate ${output.write('run.crate.zip', crate)}`)
  if (options.archive) {
    const archive = await api.fetch('/instances/default/export/', 'application/zip')
    screen.say(`archive   ${output.write('instance.zip', archive)}`)
    screen.heading('The same elsewhere')
    await showElsewhere({ api, run: real.id, plan: plan.id, file: 'mosaic.png' }, archive, {
      dataDir: `${teller.dataDir}-elsewhere`,
      logFile: output.file('elsewhere.log'),
      seedRoot: examples,
      config: teller.config,
      screen,
      stop: teller.stop,
      running: (other) => {
        stage.elsewhere = other
      },
    })
    screen.heading('Figures')
  }
  const summary = {
    run: output.run,
    machine,
    workflowVersionId: versionId,
    planId: plan.id,
    runs: { simulation: simulated.id, real: real.id },
    firstAnswerSeconds: service.seconds,
    secondsPerStep,
    ...figures,
  }
  screen.say(`figures   ${output.write('summary.json', `${JSON.stringify(summary, undefined, 2)}\n`)}`)
  screen.say(`data      ${teller.dataDir}, ${await sizeText(teller.dataDir)}:`)
  screen.say('          the next demo starts quicker with it; delete it to free the disk')
  screen.say(`the whole demo took ${duration((performance.now() - startedAt) / 1000)}`)

  if (!options.keep) return
  stage.kept = true
  screen.heading('The service stays up until Ctrl-C')
  screen.say(`from another terminal: kill ${process.pid}`)
  screen.say(`the run: ${service.ready.baseUrl}${runPath}/`)
  // This timer keeps the event loop alive; a stop aborts it.
  await Promise.race([service.ended, sleep(2 ** 31 - 1, undefined, { signal: teller.stop })])
  throw new Error('the service ended by itself')
}

const documentsOf = ({ workflow, small, site }: Options, run: string): Documents => {
  const documents = readDocuments(path.join(examples, workflow), site?.kind)
  return withSuffix(small ? { ...documents, workflow: mosaicWorkflow(smallShape) } : documents, run)
}

const assertPrograms = (workflow: Options['workflow']): void => {
  if (
    workflow === 'mosaic-montage' &&
    spawnSync('sh', ['-c', 'command -v mProject mBgModel mViewer']).status !== 0
  )
    throw new Error('Montage is not installed; this example runs it. On Debian: apt-get install montage')
}

/** Whether tasks need this machine's runner of local tasks. */
const runsHere = ({ site }: Options): boolean =>
  site === undefined || site.kind === 'docker' || site.kind === 'spanning'

const start = async ({
  options,
  dataDir,
  config,
  screen,
  stop,
  stage,
  output,
}: Teller): Promise<RunningService> => {
  const again = existsSync(path.join(dataDir, 'postgresql'))
  if (again) screen.say(`earlier demos left ${await sizeText(dataDir)} in ${dataDir}`)
  const startedAt = performance.now()
  const logFile = output.file('service.log')
  stage.logFile = logFile
  let doing = 'starting'
  const ticking = setInterval(() => {
    if (screen.renews) screen.live(`${doing} … ${duration((performance.now() - startedAt) / 1000)}`)
  }, 500)
  const onProgress = (message: string): void => {
    doing = message
    screen.live(message)
  }
  try {
    const { site } = options
    const engine = site !== undefined && makesImage(site) ? { containerEngine: engineLink(dataDir) } : {}
    // The provider's endpoint is a port of this machine.
    const environment = site?.kind === 'cloud' ? { SERVICE_ALLOW_LOOPBACK_CONNECTIONS: 'true' } : {}
    const service = await startService({
      ...{ dataDir, logFile, seedRoot: examples, stop, environment, onProgress },
      ...engine,
    })
    stage.service = service
    sayWhereItIs(service, { again, dataDir, logFile, screen })
    await awaitBuilt(service, config, { onProgress, stop }).catch((error: unknown) => {
      if (stop.aborted || runsHere(options)) throw error
      screen.say(error instanceof Error ? error.message : String(error))
    })
    return service
  } finally {
    clearInterval(ticking)
  }
}

const sizeText = async (folder: string): Promise<string> =>
  `${((await folderSize(folder)) / 2 ** 20).toFixed(0)} MiB`

const sayWhereItIs = (
  { ready, seconds }: RunningService,
  { again, dataDir, logFile, screen }: { again: boolean; dataDir: string; logFile: string; screen: Screen },
): void => {
  screen.say(
    `first answer after ${seconds.toFixed(1)} s ` +
      `(${again ? 'a later start on this data' : 'the first start on this data'})`,
  )
  screen.say(`API            ${ready.baseUrl}`)
  screen.say(`API document   ${ready.rootUrl}/docs/`)
  if (ready.temporalUiUrl !== null) screen.say(`Temporal page  ${ready.temporalUiUrl}`)
  screen.say(`data           ${dataDir}`)
  screen.say(`log            ${logFile}`)
}

/**
 * Cancels the open run of a killed demo. The service would otherwise continue it and slow this demo
 * down.
 */
const cancelEarlierRuns = async (api: Api, screen: Screen): Promise<void> => {
  for (const status of ['created', 'running']) {
    const { items } = await api.get(`/execution-runs/?status=${status}`)
    for (const { run } of items) {
      if (!run.id.startsWith('demo-')) continue
      await api.post(`/execution-runs/${encodeURIComponent(run.id)}/cancel/`)
      await awaitEnd(api, run.id)
      screen.say(`run ${run.id} of an earlier demo was still open and is cancelled`)
    }
  }
}

/** Other users of a shared machine may never pause. */
const quietWithinSeconds = 30

const measure = async (
  { options, screen, stop }: Teller,
  { workflow }: Documents,
  { cores }: Machine,
): Promise<TypeTime[]> => {
  if (options.workflow !== 'mosaic') {
    screen.say('nothing is known of these programs before a run: every task is planned with one second')
    return []
  }
  // No level of the workflow is much wider than 16 tasks, so no more run at the same time.
  const jobs = Math.min(cores, 16)
  const inUse = (busyCores: number): string =>
    `other programs use ${busyCores.toFixed(1)} of ${cpus().length} cores`
  const { quiet, busyCores } = await awaitQuiet(jobs, {
    mostSeconds: quietWithinSeconds,
    onBusy: (busy) => screen.live(`waiting for quiet (${quietWithinSeconds} s at most): ${inUse(busy)}`),
    stop,
  })
  if (!quiet)
    screen.say(`${inUse(busyCores)} after ${quietWithinSeconds} s:\nwhat is measured now may not hold later`)
  const onType = ({ activityType, runtimeSeconds, passes }: TypeTime): void => {
    screen.live(`pass ${passes}, ${activityType}: ${duration(runtimeSeconds)} per task`)
  }
  const times = await measureMosaic(workflow, examples, jobs, { onType, stop })
  for (const line of profileTable(times)) screen.say(line)
  return times
}

/** The engine starts after the service, which knows it by this link. */
const engineLink = (dataDir: string): string => path.join(dataDir, 'engine.sock')

const startSite = async ({ screen, stage, dataDir }: Teller, site: ChosenSite): Promise<Sites> => {
  const sites = await startSites(site)
  stage.sites = sites
  if (sites.builder !== undefined) {
    rmSync(engineLink(dataDir), { force: true })
    symlinkSync(sites.builder.socket, engineLink(dataDir))
  }
  for (const line of sites.lines) screen.say(line)
  return sites
}

/** @returns the environment with the connections' real addresses */
const connect = async (
  { screen, output }: Teller,
  api: Api,
  documents: Documents,
  sites: Sites,
): Promise<Documents['environment']> => {
  const environment = await sites.reach(api, `demo-${output.run}`, documents.environment, (line) =>
    screen.say(line),
  )
  for (const connection of environment.connections ?? []) {
    const { healthy, message, stages = [] } = await api.post('/connection-tests/', connection)
    const passed: string[] = stages
      .filter(({ ok }: { ok: boolean }) => ok)
      .map(({ stage }: { stage: string }) => stage)
    // Six names fit a terminal of 80 columns.
    const lines = Array.from({ length: Math.ceil(passed.length / 6) }, (_, line) =>
      passed.slice(line * 6, line * 6 + 6).join(', '),
    )
    screen.say(
      `${connection.name}: ${healthy ? 'healthy' : message}` +
        (lines.length === 0 ? '' : `, tried:\n  ${lines.join(',\n  ')}`),
    )
    if (healthy !== true) throw new Error(`the connection ${connection.name} does not work: ${message}`)
  }
  return environment
}

/** Waits until the machines of a run are gone. */
const finalReceipt = async (api: Api, runId: string): Promise<any> => {
  for (let tries = 0; ; tries++) {
    const receipt = await api.get(`/execution-runs/${runId}/receipt/`)
    if (receipt.final === true || tries === 60) return receipt
    await sleep(1_000)
  }
}

const discover = async (api: Api, screen: Screen, { environment }: Documents): Promise<void> => {
  for (const { id, name } of environment.connections ?? []) {
    let { snapshots, status } = await api.post(`/environment-connections/${id}/discover/`)
    for (; status === 'running'; await sleep(500))
      ({ snapshots, status } = await api.post(`/environment-connections/${id}/discover/`))
    screen.say(`${name}: ${snapshots.length} ${snapshots.length === 1 ? 'resource' : 'resources'} seen`)
  }
  const path = `/environments/${environment.environment.id}/`
  const found = await api.get(path)
  for (const line of resourceTable(found.resources)) screen.say(line)
  // Nobody has measured what was found, and nothing there is bound to the rehearsal: plans leave it
  // out.
  const own = new Set(environment.resources.map(({ id }) => id))
  const resources = found.resources.map((each: { id: string }) =>
    own.has(each.id) ? each : { ...each, schedulable: false },
  )
  await api.put(path, { ...found, resources })
}

/** @returns the id of the workflow's version */
const post = async (
  api: Api,
  screen: Screen,
  documents: Documents,
  machine: Machine,
  times: readonly TypeTime[],
): Promise<string> => {
  const { targets } = documents
  const workflow = targets.length > 0 ? withDurations(documents.workflow, times) : documents.workflow
  const profiles = documents.environment.resources.flatMap(({ id }) => profilesOf(workflow, id, times))
  const environment = onMachine(documents.environment, machine, profiles)
  // The order matters: profiles refer to types of the workflow.
  const { version } = await api.post('/workflow-definitions/import/', workflow)
  screen.say(
    `workflow     ${workflow.name}:\n             ${version.activityCount} activities, ` +
      `${version.dataDependencyCount} files between them`,
  )
  await api.post('/environments/', environment)
  const places =
    environment.connections === undefined
      ? 'this machine'
      : [...environment.resources, ...targets].map(({ name }) => String(name)).join(', ')
  screen.say(`environment  ${environment.environment.id}:`)
  screen.say(`             ${places},`)
  screen.say(`             ${machine.cores} cores, ${profiles.length} measured profiles; bound to a runtime`)
  screen.say('             for execution and to one for simulation')
  for (const target of targets) {
    await api.post(`/environments/${environment.environment.id}/cloud-capacity-targets/`, target)
    screen.say(
      `target       ${String(target['name'])}: ${String(target['providerMachineType'])}, when a plan needs it`,
    )
  }
  return version.id
}

/** The durations in the workflow itself: a target's resource has no profiles before it exists. */
const withDurations = (
  workflow: Documents['workflow'],
  times: readonly TypeTime[],
): Documents['workflow'] => {
  const seconds = new Map(times.map(({ activityType, runtimeSeconds }) => [activityType, runtimeSeconds]))
  const activities = workflow.spec.activities.map((activity) => {
    const durationSeconds = seconds.get(activity.activityType)
    return durationSeconds === undefined ? activity : { ...activity, simulation: { durationSeconds } }
  })
  return { ...workflow, spec: { ...workflow.spec, activities } }
}

const readOffers = async (api: Api, screen: Screen, { environment }: Documents): Promise<void> => {
  const id = environment.environment.id
  const { region, machines, images } = await api.post(`/environments/${id}/cloud-catalog/refresh/`)
  screen.say(`catalog of ${region}: ${machines.length} machine types, ${images.length} images`)
}

/** Posts what a plan may use, plans, shows the candidates and selects the best. @returns the plan */
const choosePlan = async (
  { config, screen, stop, output }: Teller,
  api: Api,
  versionId: string,
  documents: Documents,
): Promise<any> => {
  const session = `demo-${output.run}`
  // A scope keeps its environment from being replaced, which the step before may do.
  await api.post('/execution-scopes/', documents.scope)
  await api.post('/network-topologies/', documents.topology)
  await api.post('/planning-sessions/', {
    id: session,
    workflowVersionId: versionId,
    executionScopeId: documents.scope.id,
    networkTopologyId: documents.topology.id,
    algorithms: [{ id: 'heft' }],
  })
  await awaitPlanned(api, session, stop)
  const candidates = await api.get(`/planning-sessions/${session}/candidates/`)
  for (const line of candidateTable(candidates, config.currency)) screen.say(line)
  const best = candidates.find(({ feasible }: { feasible: boolean }) => feasible)
  if (best === undefined) throw new Error('no candidate is feasible here')
  const plan = await api.post(`/planning-sessions/${session}/candidates/${best.id}/select/`)
  screen.say(`selected: plan ${plan.id}`)
  return plan
}

const execute = async (
  { config, screen, stop, stage, output }: Teller,
  api: Api,
  plan: any,
  mode: 'simulation' | 'real',
): Promise<any> => {
  const id = `demo-${output.run}-${mode}`
  const finishes: number[] = plan.assignments.map(
    ({ predictedFinishAt }: { predictedFinishAt: number }) => predictedFinishAt,
  )
  // This comes before the request, because the service may accept the run although its answer is
  // lost.
  stage.openRun = id
  await api.post('/execution-runs/', { id, schedulePlanId: plan.id, mode })
  const run = await watchRun(api, screen, id, mode === 'real' ? finishes.sort((a, b) => a - b) : [], stop)
  delete stage.openRun
  if (run.status !== 'completed') throw new RunFailed(await failureOf(api, run))
  screen.say(runText(run, config.currency))
  return run
}

/** Why a run did not complete, with the end of the output of its first failed activity. */
const failureOf = async (api: Api, run: any): Promise<string> => {
  const runPath = `/execution-runs/${run.id}`
  const { items } = await api.get(`${runPath}/activities/?status=failed`)
  const said = [`run ${run.id} ended ${run.status}: ${run.failureReason ?? 'no reason is recorded'}`]
  const [failed] = items
  if (failed !== undefined) {
    said.push(`${failed.externalId}: ${failed.failureReason ?? `exit code ${failed.exitCode}`}`)
    const log = await api.fetch(
      `${runPath}/activities/${encodeURIComponent(failed.activityId)}/logs/?stream=stderr&tail=2000`,
      'text/plain',
    )
    said.push(
      log.length === 0
        ? 'it wrote nothing to standard error'
        : `the end of its standard error:\n${log.toString().trimEnd()}`,
    )
  }
  return said.join('\n')
}

/** Shows the tables. @returns their figures */
const compare = async (
  { config, screen }: Teller,
  api: Api,
  { workflow }: Documents,
  {
    machine,
    times,
    plan,
    simulated,
    real,
  }: { machine: Machine; times: readonly TypeTime[]; plan: any; simulated: any; real: any },
): Promise<object> => {
  const typeOf = new Map(workflow.spec.activities.map(({ name, activityType }) => [name, activityType]))
  const plannedCost = new Map<string, number>(
    plan.assignments.map((assignment: any) => [assignment.externalId, assignment.predictedCost]),
  )
  const tasks = (await comparedActivities(api, simulated.id, real.id)).map(
    ({ externalId, planned, a, b }): Task => ({
      activityType: typeOf.get(externalId) ?? externalId,
      seconds: { planned: planned.b, simulated: a.runtimeSeconds, measured: b.runtimeSeconds },
      cost: { planned: plannedCost.get(externalId) ?? 0, simulated: a.cost, measured: b.cost },
    }),
  )
  const lines = linesOf(tasks)
  const makespanSeconds = {
    planned: plan.predicted.makespanSeconds,
    simulated: simulated.makespanSeconds,
    measured: real.makespanSeconds,
  }
  const cost = { planned: plan.predicted.cost, simulated: simulated.cost, measured: real.cost }
  const wallSeconds = (Date.parse(real.finishedAt) - Date.parse(real.startedAt)) / 1000
  const band = bandOf(makespanSeconds.planned, lines.types, times)
  const tables = [
    taskTable(lines),
    sumTable(lines, makespanSeconds, cost),
    whereTheTimeWent(machine.cores, simulated, real),
  ]
  for (const line of tables.flatMap((each) => [...each, ''])) screen.say(line)
  screen.say(currencyText(config.currency))
  screen.say(wallText(makespanSeconds, wallSeconds, band))
  return {
    makespanSeconds,
    plannedBandSeconds: band,
    cost,
    currency: config.currency,
    wallSeconds,
    ...lines,
    breakdown: { simulated: simulated.breakdown, measured: real.breakdown },
  }
}

/** All pages of the activities of two runs side by side. */
const comparedActivities = async (api: Api, a: string, b: string): Promise<any[]> => {
  const items = []
  for (let page = 1; ; page++) {
    const { activities } = await api.get(`/execution-runs/${a}/compare/${b}/?page=${page}`)
    items.push(...activities.items)
    if (!activities.hasNext) return items
  }
}
