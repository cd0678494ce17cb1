import { isDeepStrictEqual } from 'node:util'
import { rmSync } from 'node:fs'
import type { Config } from '../../src/config.ts'
import { ApiError, openApi, type Api } from './api.ts'
import { lineageTree } from './provenance.ts'
import { duration, type Screen } from './screen.ts'
import { startService, type RunningService } from './service.ts'

/** What the archive is shown with. */
export interface Shown {
  api: Api
  run: string
  plan: string
  file: string
}

export interface Elsewhere {
  /** The folder of the second service's data; it is removed at the end. */
  dataDir: string
  logFile: string
  seedRoot: string
  config: Config
  screen: Screen
  stop: AbortSignal
  /** Called with the second service as soon as it runs, and without one when it has stopped. */
  running: (service: RunningService | undefined) => void
}

/** A document as it is there, or the status of the refusal. */
const answerOf = (work: Promise<unknown>): Promise<unknown> =>
  work.catch((error: unknown) => {
    if (error instanceof ApiError) return error.status
    throw error
  })

/**
 * Exports the instance, starts a second service on an empty folder, imports and activates the
 * archive there, and compares run, plan and lineage with those here.
 * @throws Error where one of them differs, or a change is not refused
 */
export const showElsewhere = async (
  { api, run, plan, file }: Shown,
  archive: Buffer,
  { dataDir, logFile, seedRoot, config, screen, stop, running }: Elsewhere,
): Promise<void> => {
  rmSync(dataDir, { recursive: true, force: true })
  const service = await startService({
    ...{ dataDir, logFile, seedRoot, stop },
    alone: true,
    onProgress: (message) => {
      screen.live(message)
    },
  })
  running(service)
  try {
    screen.say(`a second service on an empty folder answers after ${service.seconds.toFixed(1)} s`)
    const there = openApi(service.ready.baseUrl, config.apiToken, stop)
    const from = performance.now()
    const { id, contents } = await there.send('/instances/import/', 'application/zip', archive)
    screen.say(
      `imported in ${duration((performance.now() - from) / 1000)}: ${contents.runs} runs, ` +
        `${contents.plans} plans, ${contents.workflows} workflows`,
    )
    await there.post(`/instance-activations/${id}/`)
    const paths = [`/execution-runs/${run}/`, `/schedule-plans/${plan}/`]
    for (const path of paths)
      if (!isDeepStrictEqual(await there.get(path), await api.get(path)))
        throw new Error(`${path} differs in the imported instance`)
    const tree = await lineageTree(there, run, file)
    if (!isDeepStrictEqual(tree, await lineageTree(api, run, file)))
      throw new Error(`the lineage of ${file} differs in the imported instance`)
    screen.say('the same run, plan and lineage are there:')
    for (const line of tree.slice(0, 4)) screen.say(line)
    const refused = await answerOf(there.post(`/execution-runs/${run}/cancel/`))
    if (refused !== 423) throw new Error(`a change of the archive was answered ${String(refused)}, not 423`)
    screen.say('every change of it is refused (423)')
  } finally {
    await service.stop()
    running(undefined)
    rmSync(dataDir, { recursive: true, force: true })
  }
}
