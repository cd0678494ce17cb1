import { Client, type Connection } from '@temporalio/client'
import type { Payload, PayloadCodec } from '@temporalio/common'
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js'
import { Worker } from '@temporalio/worker'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { VaultKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { workflowBundle } from './workflow-bundle.ts'

/** The histories of earlier releases, which every later one has to replay. */
export const historiesFolder = join(import.meta.dirname, '..', 'workflows', 'histories')

/** Decodes all payloads in a message of Temporal's, however deep, in place. */
const decode = async (message: unknown, codec: PayloadCodec): Promise<void> => {
  if (typeof message !== 'object' || message === null || message instanceof Uint8Array) return
  for (const part of Object.values(message)) await decode(part, codec)
  const { metadata, data } = message as { metadata?: { encoding?: unknown }; data?: unknown }
  if (metadata?.encoding instanceof Uint8Array && data instanceof Uint8Array)
    Object.assign(message, (await codec.decode([message as Payload]))[0])
}

interface Server {
  connection: Connection
  namespace: string
  /** The keys of a service with a vault, which encodes what it gives Temporal. */
  keys?: VaultKeys
}

/** The history of a workflow, decoded: its events, and the text that a file of it holds. */
export const historyOf = async (
  { connection, namespace, keys }: Server,
  workflowId: string,
): Promise<{ events: unknown[]; json: any }> => {
  const history = await new Client({ connection, namespace }).workflow.getHandle(workflowId).fetchHistory()
  if (keys !== undefined) await decode(history.events, payloadCodec(keys))
  return { events: history.events ?? [], json: JSON.parse(historyToJSON(history)) }
}

/**
 * Waits for the end of a workflow and replays its history. With `RECORD_HISTORIES=0.1.0` it writes the
 * history as `0.1.0-NAME.json`.
 */
export const replayed = async (server: Server, name: string, workflowId: string): Promise<void> => {
  await new Client(server).workflow
    .getHandle(workflowId)
    .result()
    .catch(() => undefined)
  const { json } = await historyOf(server, workflowId)
  await Worker.runReplayHistory({ workflowBundle: await workflowBundle() }, json, workflowId)
  const version = process.env['RECORD_HISTORIES']
  if (version !== undefined)
    writeFileSync(join(historiesFolder, `${version}-${name}.json`), `${JSON.stringify(json)}\n`)
}

/** How long each activity that a workflow has at a host may wait for a worker, by its name. */
export const waitsAtHosts = async (server: Server, workflowId: string): Promise<Record<string, string>> => {
  const { json } = await historyOf(server, workflowId)
  return Object.fromEntries(
    json.events.flatMap(({ activityTaskScheduledEventAttributes: activity }: any) =>
      activity?.taskQueue.name.includes('@') === true
        ? [[activity.activityType.name, activity.scheduleToStartTimeout]]
        : [],
    ),
  )
}
