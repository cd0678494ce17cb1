import { sql, type Db } from '../../db/sql.ts'
import { InstanceDocument, PreferencesDocument, transferBuffer } from './schemas.ts'

const columns = sql`id, name, nullif(description, '') as description, nullif(organization, '') as
  organization, nullif(location, '') as location,
  transfer_buffer_bytes, created_at, updated_at`

/**
 * Gives the installation its first identity, from the name of its host, at the first start; later
 * starts change nothing.
 */
export const ensureInstance = async (db: Db, hostname: string): Promise<void> => {
  const name = hostname.trim() === '' ? 'localhost' : hostname.trim().slice(0, 200)
  const id = `instance-${
    name
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, '-')
      .replace(/^-+|-+$/g, '') || 'local'
  }`
  await db.run(
    sql`insert into system_instance (id, name, transfer_buffer_bytes)
      values (${id}, ${name}, ${transferBuffer.usual}) on conflict (singleton) do nothing`,
  )
}

/** Undefined only before `ensureInstance`. */
export const readSystemInstance = (db: Db): Promise<InstanceDocument | undefined> =>
  db.maybe(InstanceDocument, sql`select ${columns} from system_instance`)

/**
 * Saves the whole identity; an omitted member becomes empty or the default. The service sets the
 * times.
 */
export const saveInstance = (db: Db, given: InstanceDocument): Promise<InstanceDocument> => {
  const { id, name, description = '', organization = '', location = '' } = given
  const bytes = given.transferBufferBytes === 0 ? transferBuffer.usual : given.transferBufferBytes
  return db.one(
    InstanceDocument,
    sql`insert into system_instance (id, name, description, organization, location, transfer_buffer_bytes)
        values (${id}, ${name}, ${description}, ${organization}, ${location}, ${bytes})
        on conflict (singleton) do update set id = excluded.id, name = excluded.name, description =
          excluded.description, organization = excluded.organization,
          location = excluded.location, transfer_buffer_bytes = excluded.transfer_buffer_bytes, updated_at = now()
        returning ${columns}`,
  )
}

export const readPreferences = (db: Db, clientId: string): Promise<PreferencesDocument | undefined> =>
  db.maybe(
    PreferencesDocument,
    sql`select client_id, theme, animations_enabled, updated_at from user_preferences where client_id = ${clientId}`,
  )

export const savePreferences = (
  db: Db,
  clientId: string,
  { theme, animationsEnabled }: PreferencesDocument,
): Promise<PreferencesDocument> =>
  db.one(
    PreferencesDocument,
    sql`insert into user_preferences (client_id, theme, animations_enabled)
      values (${clientId}, ${theme}, ${animationsEnabled})
        on conflict (client_id) do update set theme = excluded.theme, animations_enabled =
          excluded.animations_enabled, updated_at = now()
        returning client_id, theme, animations_enabled, updated_at`,
  )
