import { array, fields, joinMembers, jsonObject, object, time } from '../../db/projection.ts'
import { accessOf, type StorageAccess } from '../../drivers/storage/access.ts'

// The documents of the inventory: one row of a table becomes its JSON object, as text. Empty
// columns are left out.

const environment = object({ ...fields('e', 'id name description status'), createdAt: time('e.created_at') })

/** Of a row `v` of environment_versions. */
export const versionObject = object({
  ...fields(
    'v',
    'id environmentId version status networkModel interferenceModel costModel configurationHash',
  ),
  createdAt: time('v.created_at'),
  publishedAt: time('v.published_at'),
})

/** Of a row `r` of runtimes. */
export const runtimeObject = object(fields('r', 'id environmentVersionId name driver mode role'), {
  configuration: 'r.configuration::text',
  capabilities: 'r.capabilities::text',
})

/** The members of a resource beside its id, its version and its metadata. */
const resourceMembers = `type name providerId executionTarget parentResourceId tier region zone architecture
  cpuCores cpuCapacity memoryBytes storageBytes computeSpeedup pricePerSecond bootOverheadSeconds
  containerOverheadSeconds schedulable`

/** Of a row `r` of resources. */
export const resourceObject = object(fields('r', `id environmentVersionId ${resourceMembers}`), {
  metadata: 'r.metadata::text',
})

/** The members of a resource that may change; its id and its version stay. */
export const changingResourceMembers = `${resourceMembers} metadata`

/** Of a row `b` of resource_runtime_bindings. */
export const bindingObject = object(fields('b', 'resourceId runtimeId enabled'), {
  configuration: 'b.configuration::text',
})

const relationObject = object(
  { ...fields('t', 'environmentVersionId sourceResourceId targetResourceId'), type: 't.relation_type' },
  { metadata: 't.metadata::text' },
)

const storageBindingObject = object(
  { ...fields('b', 'runtimeId containerPath'), default: 'b.is_default', ...fields('b', 'readOnly hostPath') },
  { configuration: 'b.configuration::text' },
)

/** SQL: the member of `json` where it has the JSON type `type`, else null. */
const typed = (json: string, name: string, type: string): string =>
  `case when jsonb_typeof(${json}->'${name}') = '${type}' then ${json}->'${name}' end`
const texts = (json: string, name: string): string =>
  `case when jsonb_typeof(${json}->'${name}') = 'array' and not ` +
  `jsonb_path_exists(${json}->'${name}', '$[*] ? (@.type() != "string")') then ${json}->'${name}' end`

const policy = `(s.configuration->'indexPolicy')`
const typesWith = (fits: (ways: readonly StorageAccess[]) => boolean): string =>
  Object.entries(accessOf)
    .filter(([, ways]) => fits(ways))
    .map(([type]) => `'${type}'`)
    .join(', ')
const isDriven = `s.type in (${typesWith((ways) => ways.length > 0)})`
const browseRoots = `coalesce(${typed('s.configuration', 'browseRoots', 'array')}, '[]')`
const roots = `jsonb_array_elements(${browseRoots}) with ordinality r(root)
    where jsonb_typeof(r.root->'path') = 'string'`
const canRead = `(${isDriven} and exists (select from ${roots}))`
const canWrite = `(${canRead} and not s.read_only)`
const canSign = `(${canRead} and s.type in (${typesWith((ways) => ways.includes('bucket'))}))`

/**
 * Members that reads add to a row `s` of storages (domain-reference 8). Roots and policy come from
 * the configuration, as far as they have the right shape. The capabilities are those of the driver
 * within approved roots. The status of health reports only that a driver exists; `probe` is what the
 * storage itself answered when it was last asked.
 */
const storageView = {
  browseRoots: `(select coalesce(json_agg(json_strip_nulls(json_build_object('path', r.root->'path', 'label',
    ${typed('r.root', 'label', 'string')},
    'readOnly', ${typed('r.root', 'readOnly', 'boolean')})) order by r.ordinality)::text, '[]') from ${roots})`,
  capabilities: `json_build_object('browse', ${canRead}, 'read', ${canRead}, 'write', ${canWrite}, 'download',
    ${canRead}, 'upload', ${canWrite},
    'checksum', ${canRead}, 'presignedDownload', ${canSign}, 'computeNodeVisible',
    s.shared or exists (select from storage_runtime_bindings b where b.storage_id = s.id))::text`,
  health: `(select json_strip_nulls(json_build_object('status', case when h.message is null then 'healthy'
    else 'unavailable' end, 'message', h.message, 'probe', s.probe))::text from (select case
      when s.type = 'local' and current_setting('orrery.local_storage', true) = 'none'
        then 'no directory of this machine is approved; start the service with SERVICE_LOCAL_STORAGE_ROOT'
      when not ${isDriven} then 'this version has no driver for storages of type ' || s.type end as message) h)`,
  indexPolicy: object({
    enabled: `coalesce(${policy}->'enabled' <> 'false', true)`,
    roots: texts(policy, 'roots'),
    maxDepth: `coalesce(${typed(policy, 'maxDepth', 'number')}, '5')`,
    maxEntries: `coalesce(${typed(policy, 'maxEntries', 'number')}, '10000')`,
    include: texts(policy, 'include'),
    exclude: texts(policy, 'exclude'),
    timeoutSeconds: `coalesce(${typed(policy, 'timeoutSeconds', 'number')}, '3600')`,
  }),
  indexStatus: `coalesce((select ${jsonObject({
    status: 'i.status',
    indexedEntries: 'i.indexed_entries',
    lastIndexedAt: time('i.last_indexed_at'),
    message: 'i.message',
  })}::text from storage_index_status i where i.storage_id = s.id), '{"status":"not_indexed"}')`,
}

/** Of a row `s` of storages. */
export const storageObject = object(
  fields('s', 'id environmentVersionId name type endpoint capacityBytes shared readOnly credentialReference'),
  {
    configuration: 's.configuration::text',
    metadata: 's.metadata::text',
    runtimeBindings: array(
      storageBindingObject,
      'storage_runtime_bindings b where b.storage_id = s.id',
      'b.position, b.runtime_id',
    ),
    ...storageView,
  },
)

/** Of a row `p` of activity_resource_profiles. */
export const profileObject = object(
  {
    ...fields('p', 'id activityTypeId resourceId runtimeSeconds'),
    runtimeStdDevSeconds: 'p.runtime_stddev_seconds',
    ...fields(
      'p',
      'cpuUtilization peakMemoryBytes diskReadBytes diskWriteBytes energyJoules source sampleSize modelVersion',
    ),
  },
  { metadata: 'p.metadata::text' },
)

const connectionObject = object(
  {
    ...fields('c', 'id environmentId name type endpoint username credentialRef'),
    createdAt: time('c.created_at'),
  },
  { configuration: 'c.configuration::text' },
)

const checkObject = object(
  { ...fields('k', 'id connectionId status message latencyMs'), checkedAt: time('k.checked_at') },
  { metadata: 'k.metadata::text' },
)

/** The number of checks shown with each connection. */
const recentChecks = 20

/**
 * The whole definition of a row `e` of environments joined to the row `v` of its highest version,
 * in the specification's order of keys; collections in the order in which they were sent.
 */
export const environmentObject = joinMembers({
  environment,
  version: versionObject,
  runtimes: array(runtimeObject, 'runtimes r where r.environment_version_id = v.id', 'r.position, r.id'),
  resources: array(resourceObject, 'resources r where r.environment_version_id = v.id', 'r.position, r.id'),
  resourceRuntimeBindings: array(
    bindingObject,
    'resource_runtime_bindings b where b.environment_version_id = v.id',
    'b.position, b.resource_id, b.runtime_id',
  ),
  resourceRelations: array(
    relationObject,
    'resource_relations t where t.environment_version_id = v.id',
    't.position, t.source_resource_id, t.target_resource_id, t.relation_type',
  ),
  storages: array(storageObject, 'storages s where s.environment_version_id = v.id', 's.position, s.id'),
  activityResourceProfiles: array(
    profileObject,
    'activity_resource_profiles p where p.environment_version_id = v.id',
    'p.position, p.id',
  ),
  connections: array(connectionObject, 'connections c where c.environment_id = e.id', 'c.position, c.id'),
  connectionChecks: array(
    checkObject,
    'connections c cross join lateral (select * from recorded_connection_checks where ' +
      `connection_id = c.id order by checked_at desc, id desc limit ${String(recentChecks)}) k ` +
      'where c.environment_id = e.id',
    'c.position, c.id, k.checked_at desc, k.id desc',
  ),
})

/** Joins to a row `e` of environments the row `v` of its highest version. */
export const newestVersion =
  'join lateral (select * from environment_versions where environment_id = e.id ' +
  'order by version desc limit 1) v on true'

/** Environments with their highest version: `e` and `v` of `environmentObject`. */
export const environmentRows = `environments e ${newestVersion}`
