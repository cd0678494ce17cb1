import { isFields, memberText, type Fields } from '../../json-object.ts'

/** A text of a document and its path. */
export interface Mention {
  value: string
  path: string
}

/** A resource's parent. It holds the child too, so that cycles can be found. */
export interface Parent extends Mention {
  child: string
}

export interface Pair {
  left: Mention
  right: Mention
  path: string
}

export type Mentions = ReturnType<typeof mentionsOf>

interface Item {
  fields: Fields
  path: string
}

const itemsOf = ({ fields, path }: Item, key: string): Item[] => {
  const list = fields[key]
  if (!Array.isArray(list)) return []
  const prefix = path === '' ? key : `${path}.${key}`
  return list.flatMap((value: unknown, i) =>
    isFields(value) ? [{ fields: value, path: `${prefix}.${String(i)}` }] : [],
  )
}

const mention = ({ fields, path }: Item, key: string): Mention[] => {
  const value = fields[key]
  return typeof value === 'string' && value !== ''
    ? [{ value, path: path === '' ? key : `${path}.${key}` }]
    : []
}

const pair = (item: Item, leftKey: string, rightKey: string): Pair[] =>
  mention(item, leftKey).flatMap((left) =>
    mention(item, rightKey).map((right) => ({ left, right, path: item.path })),
  )

/**
 * The names in a definition, read out of a document of any shape. Missing members and wrong types
 * are skipped, so that one answer reports broken rules about names together with problems of the
 * shape.
 */
export const mentionsOf = (document: unknown) => {
  const root: Item = { fields: isFields(document) ? document : {}, path: '' }
  const part = (key: string): Item => ({
    fields: isFields(root.fields[key]) ? root.fields[key] : {},
    path: key,
  })
  const all = (items: Item[], key: string): Mention[] => items.flatMap((item) => mention(item, key))
  const runtimes = itemsOf(root, 'runtimes')
  const resources = itemsOf(root, 'resources')
  const storages = itemsOf(root, 'storages')
  const profiles = itemsOf(root, 'activityResourceProfiles')
  const connections = itemsOf(root, 'connections')
  return {
    environment: mention(part('environment'), 'id')[0],
    version: mention(part('version'), 'id')[0],
    runtimes: all(runtimes, 'id'),
    runtimeNames: all(runtimes, 'name'),
    resources: all(resources, 'id'),
    providerIds: all(resources, 'providerId'),
    parents: resources.flatMap((item) =>
      mention(item, 'parentResourceId').map((parent): Parent => ({
        ...parent,
        child: memberText(item.fields['id']),
      })),
    ),
    bindings: itemsOf(root, 'resourceRuntimeBindings').flatMap((item) =>
      pair(item, 'resourceId', 'runtimeId'),
    ),
    relations: itemsOf(root, 'resourceRelations').flatMap((item) =>
      pair(item, 'sourceResourceId', 'targetResourceId').map((relation) => ({
        ...relation,
        type: memberText(item.fields['type']),
      })),
    ),
    storages: all(storages, 'id'),
    storageNames: all(storages, 'name'),
    storageBindings: storages.flatMap((storage) =>
      itemsOf(storage, 'runtimeBindings').flatMap((item) =>
        mention(item, 'runtimeId').map((right) => ({
          // A storage without an id is still one storage: its path replaces the id.
          left: mention(storage, 'id')[0] ?? { value: storage.path, path: storage.path },
          right,
          path: item.path,
          default: item.fields['default'] === true,
        })),
      ),
    ),
    profiles: all(profiles, 'id'),
    profileTargets: profiles.flatMap((item) =>
      pair(item, 'activityTypeId', 'resourceId').map((target) => ({
        ...target,
        modelVersion: memberText(item.fields['modelVersion']),
      })),
    ),
    connections: all(connections, 'id'),
    connectionNames: all(connections, 'name'),
  }
}
