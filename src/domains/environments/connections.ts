import { sql, type Db } from '../../db/sql.ts'

interface ConnectionFields {
  id: string
  environmentId: string
  name: string
  type: string
  endpoint: string
  username: string
  credentialRef: string
}

/**
 * Writes a connection under its id: in place of the stored one, or new after the others of its
 * environment.
 */
export const putConnection = (
  tx: Db,
  connection: ConnectionFields,
  configuration: string | null,
): Promise<number> => {
  const { id, environmentId, name, type, endpoint, username, credentialRef } = connection
  return tx.run(
    sql`insert into connections (id, environment_id, position, name, type, endpoint, username, credential_ref,
      configuration)
        values (${id}, ${environmentId}, (select coalesce(max(position) + 1, 0) from connections
          where environment_id = ${environmentId}),
          ${name}, ${type}, ${endpoint}, ${username}, ${credentialRef}, ${configuration})
        on conflict on constraint connections_pkey do update set name = excluded.name, type = excluded.type,
          endpoint = excluded.endpoint,
          username = excluded.username, credential_ref = excluded.credential_ref, configuration =
            excluded.configuration`,
  )
}

/** Records that the monitor of a connection was started. */
export const markMonitored = (db: Db, id: string): Promise<number> =>
  db.run(sql`update connections set monitored_since = now() where id = ${id} and monitored_since is null`)

export const setEnvironmentStatus = (tx: Db, id: string, status: string): Promise<number> =>
  tx.run(sql`update environments set status = ${status} where id = ${id}`)
