import { z } from 'zod'
import type { Problem } from '../../refusal.ts'
import { raw, sql, type Db, type Sql } from '../../db/sql.ts'
import { mentionsOf, type Mention } from './mentions.ts'

const Found = z.object({ kind: z.string(), id: z.string(), owner: z.string().optional() })
const valuesOf = (mentions: readonly Mention[]): string[] => [...new Set(mentions.map(({ value }) => value))]
const tripleKey = (activityTypeId: string, resourceId: string, modelVersion: string): string =>
  JSON.stringify([activityTypeId, resourceId, modelVersion])

/**
 * Problems of a definition that only the store can find, all at once and in one round trip: ids
 * that other environments hold (ids are global) and references to missing records. Records of the
 * environment `replaces` do not count, because the document replaces them. Takes any value, like
 * `documentProblems`.
 */
export const definitionStoreProblems = async (
  db: Db,
  document: unknown,
  replaces?: string,
): Promise<Problem[]> => {
  const names = mentionsOf(document)
  const resourcesNamed = [
    ...names.parents,
    ...names.bindings.map(({ left }) => left),
    ...names.relations.flatMap(({ left, right }) => [left, right]),
    ...names.profileTargets.map(({ right }) => right),
  ]
  const runtimesNamed = names.bindings.map(({ right }) => right)
  const typesNamed = names.profileTargets.map(({ left }) => left)
  const counts = replaces === undefined ? sql`true` : sql`v.environment_id <> ${replaces}`
  const ofOthers = (
    kind: string,
    table: 'runtimes' | 'resources' | 'storages' | 'activity_resource_profiles',
    mentions: readonly Mention[],
  ): Sql =>
    sql`select ${kind}::text, t.id::text, v.environment_id::text from ${raw(table)} t
      join environment_versions v on v.id = t.environment_version_id
        where t.id = any(${valuesOf(mentions)}) and ${counts}`

  const found = await db.many(
    Found,
    sql`select 'environment' as kind, id::text as id, id::text as owner from environments v
      where id = ${names.environment?.value ?? ''} ${replaces === undefined ? sql`` : sql`and id <> ${replaces}`}
      union all select 'version', v.id, v.environment_id from environment_versions v
        where v.id = ${names.version?.value ?? ''} and ${counts}
      union all ${ofOthers('runtime', 'runtimes', [...names.runtimes, ...runtimesNamed])}
      union all ${ofOthers('resource', 'resources', [...names.resources, ...resourcesNamed])}
      union all ${ofOthers('storage', 'storages', names.storages)}
      union all ${ofOthers('profile', 'activity_resource_profiles', names.profiles)}
      union all select 'connection', v.id, v.environment_id from connections v
        where v.id = any(${valuesOf(names.connections)}) and ${counts}
      union all select 'type', id, null from registered_activity_types where id = any(${valuesOf(typesNamed)})
      union all select 'target', json_build_array(p.activity_type_id, p.resource_id, p.model_version)::text,
        v.environment_id
        from activity_resource_profiles p join environment_versions v on v.id = p.environment_version_id
        where p.activity_type_id = any(${valuesOf(typesNamed)})
          and p.resource_id = any(${valuesOf(names.profileTargets.map(({ right }) => right))}) and ${counts}`,
  )
  const owners = new Map<string, Map<string, string>>()
  for (const { kind, id, owner } of found) {
    const key = kind === 'target' ? JSON.stringify(JSON.parse(id)) : id
    const known = owners.get(kind)
    if (known === undefined) owners.set(kind, new Map([[key, owner ?? '']]))
    else known.set(key, owner ?? '')
  }
  const ownerOf = (kind: string, id: string): string | undefined => owners.get(kind)?.get(id)

  const taken = (kind: string, mentions: readonly Mention[]): Problem[] =>
    mentions.flatMap(({ value, path }) => {
      const owner = ownerOf(kind, value)
      return owner === undefined
        ? []
        : [
            {
              path,
              message:
                `the ${kind} id ${JSON.stringify(value)} is taken by environment ` +
                `${JSON.stringify(owner)}; ids are global, choose another`,
            },
          ]
    })
  const dangling = (
    kind: string,
    mentions: readonly Mention[],
    own: readonly Mention[],
    noun = kind,
    remedy = `add the ${kind} to the document or correct the id`,
  ): Problem[] => {
    const here = new Set(own.map(({ value }) => value))
    return mentions
      .filter(({ value }) => !here.has(value) && ownerOf(kind, value) === undefined)
      .map(({ value, path }) => ({ path, message: `${JSON.stringify(value)} names no ${noun}; ${remedy}` }))
  }

  return [
    ...taken('environment', names.environment === undefined ? [] : [names.environment]),
    ...taken('version', names.version === undefined ? [] : [names.version]),
    ...taken('runtime', names.runtimes),
    ...taken('resource', names.resources),
    ...taken('storage', names.storages),
    ...taken('profile', names.profiles),
    ...taken('connection', names.connections),
    ...dangling('resource', resourcesNamed, names.resources),
    ...dangling('runtime', runtimesNamed, names.runtimes),
    ...dangling('type', typesNamed, [], 'activity type', 'register the workflow that defines it first'),
    ...names.profileTargets.flatMap(({ left, right, modelVersion, path }) => {
      const owner = ownerOf('target', tripleKey(left.value, right.value, modelVersion))
      if (owner === undefined) return []
      return [
        {
          path,
          message:
            'a profile of this activity type, resource and modelVersion exists in environment ' +
            `${JSON.stringify(owner)}; give another modelVersion`,
        },
      ]
    }),
  ]
}
