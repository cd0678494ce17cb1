import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import type { WorkflowDocument } from '../workflow-document.ts'

/** The documents that a run of the demo posts. */
export interface Documents {
  workflow: WorkflowDocument
  environment: Environment
  scope: { id: string; [member: string]: unknown }
  topology: { id: string; links: { id: string }[]; [member: string]: unknown }
}

export interface Connection {
  id: string
  name: string
  configuration?: Record<string, unknown>
  [member: string]: unknown
}

export interface Environment {
  environment: { id: string; [member: string]: unknown }
  version: { id: string; [member: string]: unknown }
  runtimes: { id: string; [member: string]: unknown }[]
  resources: { id: string; [member: string]: unknown }[]
  connections?: Connection[]
  activityResourceProfiles: unknown[]
  [member: string]: unknown
}

export interface Machine {
  cores: number
  memoryBytes: number
}

/** The documents of an example as its folder holds them; those of another place than this machine are in a folder below. */
export const readDocuments = (folder: string, site = ''): Documents => {
  const read = (name: string): unknown => parse(readFileSync(path.join(folder, name === 'workflow.yaml' ? '' : site, name), 'utf8'))
  return {
    workflow: read('workflow.yaml') as WorkflowDocument,
    environment: read('environment.yaml') as Environment,
    scope: read('scope.yaml') as Documents['scope'],
    topology: read('topology.yaml') as Documents['topology'],
  }
}

/** The same documents under ids of their own, wherever they are mentioned, so that every run of the demo finds its ids free. */
export const withSuffix = ({ workflow, environment, scope, topology }: Documents, suffix: string): Documents => {
  const { runtimes, resources, connections = [] } = environment
  const declared = [
    environment.environment,
    environment.version,
    ...runtimes,
    ...resources,
    ...connections,
    scope,
    topology,
    ...topology.links,
  ]
  const ids = new Set(declared.map(({ id }) => id))
  const renamed = (value: unknown): unknown => {
    if (typeof value === 'string') return ids.has(value) ? `${value}-${suffix}` : value
    if (Array.isArray(value)) return value.map(renamed)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, renamed(member)]))
  }
  const rest = renamed({ environment, scope, topology }) as Omit<Documents, 'workflow'>
  return { workflow: { ...workflow, name: `${workflow.name}-${suffix}` }, ...rest }
}

/** The environment with what is known of this machine, whose cores are shared out where the sites are on it too. */
export const onMachine = (environment: Environment, { cores, memoryBytes }: Machine, profiles: readonly unknown[]): Environment => {
  const count = environment.resources.length
  const share = Math.max(1, Math.floor(cores / count))
  return {
    ...environment,
    resources: environment.resources.map((resource) => ({
      ...resource,
      cpuCores: share,
      cpuCapacity: share,
      memoryBytes: Math.floor(memoryBytes / count),
    })),
    activityResourceProfiles: [...profiles],
  }
}

/** How a connection of the documents reaches its host; `name` is the connection's. */
export interface Contact {
  name: string
  address: string
  port: number
  username: string
  /** The host's line of `known_hosts`. */
  knownHosts: string
}

/** The environment with its connections as the hosts are reached. @throws Error when one of them has no host */
export const atHosts = (environment: Environment, contacts: readonly Contact[], credentialRef: string): Environment => ({
  ...environment,
  connections: (environment.connections ?? []).map((connection) => {
    const contact = contacts.find(({ name }) => name === connection.name)
    if (contact === undefined) throw new Error(`no site was started for connection ${connection.name}`)
    const { address: endpoint, port, username, knownHosts } = contact
    const configuration = { ...connection.configuration, port, knownHosts, hostKeyPolicy: 'strict' }
    return { ...connection, endpoint, username, credentialRef, configuration }
  }),
})

export interface Cluster {
  server: string
  certificateAuthority: string
  namespace: string
  credentialRef: string
  /** Keys of the configuration of the runtimes that use it. */
  runtime: Readonly<Record<string, unknown>>
}

/** The environment with its connection, its runtimes and its namespace as the cluster has them. */
export const atCluster = (
  environment: Environment,
  { server, certificateAuthority, namespace, credentialRef, runtime }: Cluster,
): Environment => ({
  ...environment,
  connections: (environment.connections ?? []).map((connection) => ({
    ...connection,
    endpoint: server,
    credentialRef,
    configuration: { ...connection.configuration, certificateAuthority, namespace },
  })),
  runtimes: withConfiguration(environment.runtimes, 'kubernetes', runtime),
  // Discovery knows the namespace by its name: it is this resource, not one more beside it.
  resources: environment.resources.map((resource) => ({ ...resource, providerId: namespace })),
})

/** The runtimes, those of one driver with further keys in their configuration. */
export const withConfiguration = (
  runtimes: Environment['runtimes'],
  driver: string,
  configuration: Readonly<Record<string, unknown>>,
): Environment['runtimes'] =>
  runtimes.map((runtime) =>
    runtime['driver'] === driver
      ? { ...runtime, configuration: { ...(runtime['configuration'] as object | undefined), ...configuration } }
      : runtime,
  )
