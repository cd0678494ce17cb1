import { hash } from 'node:crypto'
import { z } from 'zod'
import { sql, type Db } from '../../db/sql.ts'
import { imageTextDigest, readBuildOrNothing } from './builds.ts'
import { versionIdOf } from './store.ts'

/** What catalog references of executables name. */

const VariantRow = z.object({
  versionId: z.string(),
  variantId: z.string(),
  digest: z.string(),
  sizeBytes: z.number().nullish(),
  format: z.string(),
  architecture: z.string().nullish(),
  hosts: z.array(z.string()),
  /** Addresses in storages. */
  places: z.array(z.string()),
  imageId: z.string().nullish(),
})
export type VariantFacts = z.output<typeof VariantRow>
const BuildRow = z.object({ id: z.string(), format: z.string(), architecture: z.string() })
const VersionRow = z.object({ id: z.string(), version: z.string() })

/** An artifact's version with its variants and builds. */
export interface CatalogEntry {
  versionId: string
  version: string
  variants: VariantFacts[]
  builds: z.output<typeof BuildRow>[]
}

/** A version of an artifact, by default the newest; undefined: there is none. */
export const catalogEntry = async (
  db: Db,
  artifactId: string,
  version: string | undefined,
): Promise<CatalogEntry | undefined> => {
  const found = await db.maybe(
    VersionRow,
    sql`select id, version from artifact_versions where artifact_id = ${artifactId}
        and (${version ?? null}::text is null or version = ${version ?? ''})
        order by created_at desc, id desc limit 1`,
  )
  if (found === undefined) return undefined
  const variants = await db.many(
    VariantRow,
    sql`select n.artifact_version_id as version_id, n.id as variant_id, n.digest, n.size_bytes, n.format,
        n.architecture, array(select substr(l.endpoint_id, 16) from artifact_locations l
          where l.variant_id = n.id and l.available and l.endpoint_id like 'artifact-store@%') as hosts,
        array(select l.uri from artifact_locations l where l.variant_id = n.id and l.available
          and l.uri like 'storage://%' order by l.id limit 10) as places,
        (select r.image_id from build_runs r where r.output_variant_id = n.id and r.image_id is not null
          order by r.created_at desc limit 1) as image_id
      from artifact_variants n where n.artifact_version_id = ${found.id} order by n.id limit 1000`,
  )
  const builds = await db.many(
    BuildRow,
    sql`select id, target_format as format, target_architecture as architecture from artifact_builds
        where artifact_version_id = ${found.id} order by created_at desc, id desc limit 100`,
  )
  return { versionId: found.id, version: found.version, variants, builds }
}

/**
 * The build that makes a file of a format of a pinned image, recorded once for all runs. The
 * artifact is that of the image's name.
 */
export const ensureImageBuild = async (
  tx: Db,
  {
    image,
    format,
    architecture,
    credentialRef,
  }: { image: string; format: 'sif' | 'oci'; architecture: string; credentialRef?: string | undefined },
): Promise<string> => {
  const key = hash('sha256', JSON.stringify(['run-image', image, format, architecture, credentialRef]))
  const id = `build-${key.slice(0, 40)}`
  if ((await readBuildOrNothing(tx, id)) !== undefined) return id
  const artifactId = `image-${key.slice(0, 40)}`
  const version = image.slice(-200)
  const versionId = versionIdOf({ artifactId, version, scope: 'system', scopeId: '' })
  await tx.run(
    sql`insert into artifact_versions (id, artifact_id, name, version, scope, scope_id)
        values (${versionId}, ${artifactId}, ${image.slice(0, 200)}, ${version}, 'system', '') on conflict do nothing`,
  )
  const digest = imageTextDigest(image)
  await tx.run(
    sql`insert into artifact_builds (id, artifact_version_id, source_type, image, context_digest, recipe_digest,
        target_format, target_os, target_architecture, build_arguments, network, credential_ref, cache_key)
      values (${id}, ${versionId}, 'docker-image', ${image}, ${digest}, ${digest}, ${format}, 'linux',
        ${architecture}, '{}', false, ${credentialRef ?? null}, ${`run-image:${key}`}) on conflict do nothing`,
  )
  return id
}
