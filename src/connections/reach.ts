import { z } from 'zod'
import type { Db } from '../db/sql.ts'
import type { Reach } from '../drivers/transfer/transfer.ts'
import { parseHostPort } from './endpoint.ts'
import { readConnection, recordedHostKeys } from '../domains/environment-connections/store.ts'

const Settings = z.object({
  forwardAgent: z.literal(true),
  directTo: z.array(z.string()).max(100),
})
const Known = z.object({ knownHosts: z.string().optional(), port: z.number().optional() })

/**
 * Sites to which the site of a connection may log in by itself: those of `directTo` in its
 * configuration, while it forwards its agent. Only sites with a known host key line count: no
 * person is there to check a fingerprint.
 */
export const reachOf = async (db: Db, connectionId: string): Promise<Reach[]> => {
  const settings = Settings.safeParse((await readConnection(db, connectionId))?.configuration)
  if (!settings.success) return []
  const reach: Reach[] = []
  for (const id of settings.data.directTo) {
    const other = await readConnection(db, id)
    const place = other === undefined ? undefined : parseHostPort(other.endpoint)
    if (other?.type !== 'ssh' || place === undefined || typeof place === 'string') continue
    const known = Known.parse(other.configuration ?? {})
    const lines = [
      known.knownHosts ?? '',
      ...(await recordedHostKeys(db, id)).map(({ line }) => line),
    ].filter((line) => line !== '')
    if (lines.length === 0) continue
    const port = place.port ?? known.port ?? 22
    reach.push({
      site: `ssh/${id}`,
      host: place.host,
      port,
      username: other.username,
      knownHosts: `${lines.join('\n')}\n`,
    })
  }
  return reach
}
