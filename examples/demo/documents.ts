import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import type { WorkflowDocument } from '../workflow-document.ts'

/** The documents that a run of the demo posts. */
export interface Documents {
  workflow: WorkflowDocument
  environment: Environment
  scope: { id: string; [member: string]: unknown }
  topology: { id: string; [member: string]: unknown }
}

interface Environment {
  environment: { id: string; [member: string]: unknown }
  version: { id: string; [member: string]: unknown }
  runtimes: { id: string; [member: string]: unknown }[]
  resources: { id: string; [member: string]: unknown }[]
  activityResourceProfiles: unknown[]
  [member: string]: unknown
}

export interface Machine {
  cores: number
  memoryBytes: number
}

/** The documents of an example as its folder holds them. */
export const readDocuments = (folder: string): Documents => {
  const read = (name: string): unknown => parse(readFileSync(path.join(folder, name), 'utf8'))
  return {
    workflow: read('workflow.yaml') as WorkflowDocument,
    environment: read('environment.yaml') as Environment,
    scope: read('scope.yaml') as Documents['scope'],
    topology: read('topology.yaml') as Documents['topology'],
  }
}

/** The same documents under ids of their own, wherever they are mentioned, so that every run of the demo finds its ids free. */
export const withSuffix = ({ workflow, environment, scope, topology }: Documents, suffix: string): Documents => {
  const declared = [environment.environment, environment.version, ...environment.runtimes, ...environment.resources, scope, topology]
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

/** The environment with what is known of this machine. */
export const onMachine = (environment: Environment, { cores, memoryBytes }: Machine, profiles: readonly unknown[]): Environment => ({
  ...environment,
  resources: environment.resources.map((resource) => ({ ...resource, cpuCores: cores, cpuCapacity: cores, memoryBytes })),
  activityResourceProfiles: [...profiles],
})
