import { Client, Connection } from '@temporalio/client'
import { historyToJSON } from '@temporalio/common/lib/proto-utils.js'
import { readdirSync, readFileSync } from 'node:fs'
import { z } from 'zod'
import { sql, raw, type Db } from '../../src/db/sql.ts'
import { openVaultKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { descendants } from '../../sites/ground.ts'
import { temporalAddress } from './service.ts'

/** What a service has written and started, as texts in which a secret is looked for. */

const TableRow = z.object({ name: z.string() })
const TextRow = z.object({ text: z.string() })

/** Every row of every table. */
export const rowsOf = async (db: Db): Promise<string> => {
  const tables = await db.many(
    TableRow,
    sql`select table_name::text as name from information_schema.tables
      where table_schema = current_schema() and table_type = 'BASE TABLE'`,
  )
  let all = ''
  for (const { name } of tables)
    for (const { text } of await db.many(TextRow, sql`select t::text as text from ${raw(`"${name}"`)} t`))
      all += `${name} ${text}\n`
  return all
}

/** Every history of a namespace, with its payloads as they are stored and decrypted. */
export const historiesOf = async (namespace: string, keyFile: string): Promise<string> => {
  const codec = payloadCodec(await openVaultKeys(keyFile))
  const connection = await Connection.connect({ address: temporalAddress() })
  let all = ''
  const walk = async (value: any): Promise<void> => {
    if (typeof value !== 'object' || value === null) return
    if (typeof value.data === 'string' && value.metadata !== undefined) {
      const metadata = Object.fromEntries(
        Object.entries(value.metadata).map(([name, text]) => [name, Buffer.from(String(text), 'base64')]),
      )
      const data = Buffer.from(value.data, 'base64')
      const [opened] = await codec.decode([{ metadata, data }])
      all += `${data.toString('latin1')}\n${Buffer.from(opened?.data ?? []).toString('latin1')}\n`
    }
    for (const item of Object.values(value)) await walk(item)
  }
  try {
    const client = new Client({ connection, namespace })
    for await (const { workflowId, runId } of client.workflow.list()) {
      const history = historyToJSON(await client.workflow.getHandle(workflowId, runId).fetchHistory())
      all += `${workflowId} ${history}\n`
      await walk(JSON.parse(history))
    }
    return all
  } finally {
    await connection.close()
  }
}

/** A file of a process; empty when the process has ended. */
const textOf = (pid: string, file: string): string => {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'latin1')
  } catch {
    return ''
  }
}

/**
 * Command lines and environments of other processes, looked at again and again until `stop`. With
 * `folders` only of those below this process, and of those that name one of the folders there.
 */
export const watchProcesses = (folders?: readonly string[], everyMs = 200): { stop: () => string } => {
  const seen = new Set<string>()
  const look = (): void => {
    const below = new Set(descendants(process.pid).map(String))
    for (const pid of readdirSync('/proc')) {
      if (!/^\d+$/.test(pid) || pid === String(process.pid)) continue
      const text = ['cmdline', 'environ'].map((file) => textOf(pid, file)).join('\n')
      if (folders === undefined || below.has(pid) || folders.some((folder) => text.includes(folder)))
        seen.add(text)
    }
  }
  look()
  const timer = setInterval(look, everyMs)
  return {
    stop: () => {
      clearInterval(timer)
      look()
      return [...seen].join('\n')
    },
  }
}
