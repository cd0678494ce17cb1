import { z } from 'zod'
import { findUsers, userText, type Use } from '../../db/uses.ts'
import { sql, type Db, type Sql } from '../../db/sql.ts'
import type { ArtifactStore } from '../../drivers/build/store.ts'
import { missing, unacceptable } from '../../refusal.ts'
import { ArtifactVersion } from './schemas.ts'
import { holdBytes } from './store.ts'

/** Versions with all that belongs to them, and the deletion of what nothing refers to. */

/** Records that use versions or builds: selections of their ids. */
export type ArtifactUse = Use<{ versionId: string } | { buildId: string }>

interface DeletionParts {
  db: Db
  artifactStore: Pick<ArtifactStore, 'remove' | 'removeLog'>
}

/** A version with its variants, their places, and its builds; lists are cut at 1,000. */
export const readVersion = async (db: Db, id: string): Promise<z.output<typeof ArtifactVersion>> => {
  const document = await db.value(
    z.unknown(),
    sql`select jsonb_strip_nulls(jsonb_build_object('id', v.id, 'artifactId', v.artifact_id, 'name', v.name,
        'version', v.version, 'scope', v.scope, 'scopeId', nullif(v.scope_id, ''),
        'createdAt', to_jsonb(v.created_at at time zone 'utc') #>> '{}' || 'Z',
        'variants', (select coalesce(json_agg(json_build_object('id', n.id, 'artifactId', v.artifact_id, 'digest',
          n.digest, 'format', n.format, 'architecture', n.architecture, 'sizeBytes', n.size_bytes,
          'verification', n.verification,
          'locations', (select coalesce(json_agg(json_build_object('id', l.id, 'endpointId', l.endpoint_id, 'uri',
            l.uri, 'available', l.available) order by l.id), '[]')
            from (select * from artifact_locations where variant_id = n.id order by id limit 1000) l))
          order by n.id), '[]') from (select * from artifact_variants where artifact_version_id = v.id
            order by id limit 1000) n),
        'builds', (select coalesce(json_agg(b.id order by b.id), '[]') from (select id from artifact_builds
          where artifact_version_id = v.id order by id limit 1000) b))) as document
      from artifact_versions v where v.id = ${id}`,
  )
  if (document === undefined) throw missing('artifact version', id)
  return ArtifactVersion.parse(document)
}

const refuseUsed = async <Target>(
  tx: Db,
  what: string,
  uses: readonly Use<Target>[],
  target: Target,
): Promise<void> => {
  const users = await findUsers(tx, uses, target)
  if (users.length > 0)
    throw unacceptable(
      users.map((user) => ({
        path: '',
        message: `the ${what} is used by ${userText(user)}; delete that first`,
      })),
    )
}

const buildsOfVersion: ArtifactUse = {
  kind: 'build',
  ids: (target) =>
    sql`select id::text from artifact_builds
        where artifact_version_id = ${'versionId' in target ? target.versionId : ''}`,
}
const buildsOfContext: Use<string> = {
  kind: 'build',
  ids: (digest) => sql`select id::text from artifact_builds where context_digest = ${digest}`,
}
const openRunsOfBuild: ArtifactUse = {
  kind: 'build run',
  ids: (target) =>
    sql`select id::text from build_runs where status in ('queued', 'running')
        and artifact_build_id = ${'buildId' in target ? target.buildId : ''}`,
}

/** Kinds of bytes that go once no record names them. */
type OwnedKind = 'images' | 'contexts'
/** Whether a record names the digest `given.digest`. */
const isOwned: Readonly<Record<OwnedKind, Sql>> = {
  images: sql`exists (select from artifact_variants n where n.digest = given.digest)
    or exists (select from build_runs r where r.output_digest = given.digest)`,
  contexts: sql`exists (select from build_contexts c where c.digest = given.digest)`,
}
/** The files of a digest of a kind. */
const filesOf = { images: ['images', 'sboms'], contexts: ['contexts'] } as const

const ownedOf = async (db: Db, kind: OwnedKind, digests: readonly string[]): Promise<Set<string>> => {
  const owned = await db.values(
    z.string(),
    sql`select digest from unnest(${[...digests]}::text[]) as given (digest) where ${isOwned[kind]}`,
  )
  return new Set(owned)
}

/**
 * Removes files of the store of this host that no record names. A build that publishes equal bytes
 * meanwhile, or an upload of them, keeps them, or makes them again. `isFree` is asked last, while the
 * bytes are held.
 */
export const removeUnowned = async (
  { db, artifactStore }: DeletionParts,
  digests: readonly string[],
  kind: OwnedKind = 'images',
  isFree: (tx: Db, digest: string) => Promise<boolean> = () => Promise.resolve(true),
): Promise<void> => {
  const kept = await ownedOf(db, kind, digests)
  for (const digest of digests)
    if (!kept.has(digest))
      await db.transaction(async (tx) => {
        await holdBytes(tx, digest)
        if ((await ownedOf(tx, kind, [digest])).size > 0 || !(await isFree(tx, digest))) return
        for (const each of filesOf[kind]) await artifactStore.remove(each, digest)
      })
}

/** Deletes a version that no build and no run refers to; its files go with it. @throws Refusal */
export const deleteVersion = async (
  parts: DeletionParts,
  uses: readonly ArtifactUse[],
  id: string,
): Promise<void> => {
  const digests = await parts.db.transaction(async (tx) => {
    if ((await tx.run(sql`select from artifact_versions where id = ${id} for update`)) === 0)
      throw missing('artifact version', id)
    await refuseUsed(tx, 'artifact version', [buildsOfVersion, ...uses], { versionId: id })
    const held = await tx.values(
      z.string(),
      sql`select digest from artifact_variants where artifact_version_id = ${id}`,
    )
    await tx.run(sql`delete from artifact_versions where id = ${id}`)
    return held
  })
  await removeUnowned(parts, digests)
}

const RunRow = z.object({ id: z.string(), digest: z.string().nullish() })

/**
 * Deletes a build that no run refers to, with the records and logs of its own runs; its variants
 * stay with their version. @throws Refusal
 */
export const deleteBuild = async (
  parts: DeletionParts,
  uses: readonly ArtifactUse[],
  id: string,
): Promise<void> => {
  const runs = await parts.db.transaction(async (tx) => {
    if ((await tx.run(sql`select from artifact_builds where id = ${id} for update`)) === 0)
      throw missing('build', id)
    await refuseUsed(tx, 'build', [openRunsOfBuild, ...uses], { buildId: id })
    const rows = await tx.many(
      RunRow,
      sql`select id, output_digest as digest from build_runs where artifact_build_id = ${id}`,
    )
    await tx.run(sql`delete from artifact_builds where id = ${id}`)
    return rows
  })
  for (const run of runs) await parts.artifactStore.removeLog(run.id)
  await removeUnowned(parts, [...new Set(runs.flatMap(({ digest }) => digest ?? []))])
}

/** Deletes a context that no build refers to, with its bytes. @throws Refusal */
export const deleteContext = async (parts: DeletionParts, digest: string): Promise<void> => {
  await parts.db.transaction(async (tx) => {
    if ((await tx.run(sql`select from build_contexts where digest = ${digest} for update`)) === 0)
      throw missing('build context', digest)
    await refuseUsed(tx, 'build context', [buildsOfContext], digest)
    await tx.run(sql`delete from build_contexts where digest = ${digest}`)
  })
  await removeUnowned(parts, [digest], 'contexts')
}
