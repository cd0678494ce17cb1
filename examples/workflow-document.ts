import { Document } from 'yaml'

/**
 * The authoring document of a workflow, as far as the examples use it: the body of `POST
 * /workflow-definitions/import/`.
 */
export interface WorkflowDocument {
  name: string
  spec: {
    namespace: string
    /** Default container image of the activities. */
    image: string
    activities: WorkflowActivity[]
    dataDependencies: DataDependency[]
  }
}

export interface WorkflowActivity {
  name: string
  /** Durations are measured, planned and shown per type. */
  activityType: string
  /** A command line for `sh`. */
  run: string
  /** In which image it runs, where that is not the default one. */
  command?: { executable: Record<string, unknown> }
  cpuLimit: string
  memoryLimit: string
  dependsOn?: string[]
  /** Folder below the service's seed root whose files are put into the work directory. */
  workspaceSeedPath: string
  /** `declared`: of a predecessor's files only those named by a data dependency are staged. */
  stage: 'declared'
  expectedOutputs: string[]
  /** What a plan counts where no profile gives the duration. */
  simulation?: { durationSeconds: number }
}

export interface DataDependency {
  producerActivity: string
  consumerActivity: string
  /** The file's path in the work directory. */
  logicalName: string
  sizeBytes: number
}

/** The document as YAML with a heading for readers; `command` is the command that wrote it. */
export const workflowYaml = (workflow: WorkflowDocument, command: string): string => {
  const document = new Document(workflow)
  document.commentBefore = [
    ` Written by ${command}. For POST /workflow-definitions/import/.`,
    '',
    ' image: the portable form demands an executable for every activity. The local runtime runs ' +
      'the commands with what its',
    '   host has installed and pulls no image; a container runtime would run them in this one.',
    ' stage: declared: of the files of its predecessors, a task gets those that dataDependencies name, not all.',
    ' workspaceSeedPath: the programs, below the folder that SERVICE_SEED_ROOT names.',
  ].join('\n')
  return document.toString({ lineWidth: 0, singleQuote: true })
}
