import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import type { WorkflowDocument } from '../workflow-document.ts'

/** The documents that a run of the demo posts. */
export interface Documents {
  workflow: WorkflowDocument
  environment: Environment
  scope: { id: string; [member: string]: unknown }
  topology: { id: string; links: { id: string }[]; [member: string]: unknown }
  /** Machines that a cloud provider makes for runs; each is a resource of its id. */
  targets: { id: string; [member: string]: unknown }[]
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

/**
 * The documents in an example's folder. Those for a site other than this machine are in a folder
 * below it.
 */
export const readDocuments = (folder: string, site = ''): Documents => {
  const read = (name: string): unknown =>
    parse(readFileSync(path.join(folder, name === 'workflow.yaml' ? '' : site, name), 'utf8'))
  return {
    workflow: read('workflow.yaml') as WorkflowDocument,
    environment: read('environment.yaml') as Environment,
    scope: read('scope.yaml') as Documents['scope'],
    topology: read('topology.yaml') as Documents['topology'],
    targets: existsSync(path.join(folder, site, 'targets.yaml'))
      ? (read('targets.yaml') as Documents['targets'])
      : [],
  }
}

/**
 * The same documents with a suffix on all their ids and references, so that every run of the demo
 * finds its ids free.
 */
export const withSuffix = (
  { workflow, environment, scope, topology, targets }: Documents,
  suffix: string,
): Documents => {
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
    ...targets,
  ]
  const ids = new Set(declared.map(({ id }) => id))
  const renamed = (value: unknown): unknown => {
    if (typeof value === 'string') return ids.has(value) ? `${value}-${suffix}` : value
    if (Array.isArray(value)) return value.map(renamed)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, renamed(member)]))
  }
  const rest = renamed({ environment, scope, topology, targets }) as Omit<Documents, 'workflow'>
  return { workflow: { ...workflow, name: `${workflow.name}-${suffix}` }, ...rest }
}

/**
 * The environment with the facts of this machine. Where the sites are on this machine too, they
 * share its cores.
 */
export const onMachine = (
  environment: Environment,
  { cores, memoryBytes }: Machine,
  profiles: readonly unknown[],
): Environment => {
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

/** Address and login of a connection's host; `name` is the connection's. */
export interface Contact {
  name: string
  address: string
  port: number
  username: string
  /** The host's line of `known_hosts`. */
  knownHosts: string
}

/**
 * The environment with the addresses and logins of its hosts. @throws Error where a connection has
 * no host
 */
export const atHosts = (
  environment: Environment,
  contacts: readonly Contact[],
  credentialRef: string,
): Environment => ({
  ...environment,
  connections: (environment.connections ?? []).map((connection) => {
    const contact = contacts.find(({ name }) => name === connection.name)
    if (contact === undefined) throw new Error(`no site was started for connection ${connection.name}`)
    const { address: endpoint, port, username, knownHosts } = contact
    const configuration = { ...connection.configuration, port, knownHosts, hostKeyPolicy: 'strict' }
    return { ...connection, endpoint, username, credentialRef, configuration }
  }),
})

/** The environment with the address of the cloud site and its credential. */
export const atCloud = (
  environment: Environment,
  { endpoint, credentialRef }: { endpoint: string; credentialRef: string },
): Environment => ({
  ...environment,
  connections: (environment.connections ?? []).map((connection) => ({
    ...connection,
    ...{ endpoint, credentialRef },
  })),
})

export interface Cluster {
  server: string
  certificateAuthority: string
  namespace: string
  credentialRef: string
  /** Configuration keys of the runtimes that use the cluster. */
  runtime: Readonly<Record<string, unknown>>
}

/** The environment with the connection, the runtimes and the namespace of the cluster. */
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
  // Discovery identifies the namespace by its name, so this resource matches and no second one is
  // added.
  resources: environment.resources.map((resource) => ({ ...resource, providerId: namespace })),
})

/** The runtimes, with further configuration keys for those of one driver. */
export const withConfiguration = (
  runtimes: Environment['runtimes'],
  driver: string,
  configuration: Readonly<Record<string, unknown>>,
): Environment['runtimes'] =>
  runtimes.map((runtime) =>
    runtime['driver'] === driver
      ? {
          ...runtime,
          configuration: { ...(runtime['configuration'] as object | undefined), ...configuration },
        }
      : runtime,
  )
