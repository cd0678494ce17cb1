/**
 * What the names in braces of paths stand for, in the API's document. A name that stands for
 * different things has an entry for each part of a path that it follows. A name that is missing here
 * stays without a description, and `test/api/document-names.test.ts` fails.
 */
const descriptions: Record<string, string> = {
  a: 'Id of the first run',
  action: 'What is done with the machine: configure, destroy, start, stop or validate',
  activityId: "Id of an activity of the run, or its id in the author's document",
  artifactId: 'Id of the artifact, which all of its versions share',
  artifactVersionId: 'Id of the version of an artifact',
  b: 'Id of the run that is set beside it',
  buildId: 'Id of the build: a recipe, its context and the target format',
  'build-contexts/digest': 'Digest of the bytes of the context: `sha256:` and 64 hexadecimal digits',
  'build-runs/runId': 'Id of the run of a build',
  candidateId: 'Id of a candidate for a plan that the session has found',
  clientId: 'Id of 8 to 128 characters that the client makes up once and keeps',
  'cloud-credentials/credentialId': 'Id of the key of an account at a provider',
  'cloud-instances/instanceId': 'Id of the machine in the cloud',
  commandId: 'Id of the command',
  configurationId: 'Id of the machine configuration, which all of its versions share',
  connectionId: 'Id of the connection of an environment',
  'console-sessions/sessionId': 'Id of the terminal',
  downloadId: 'Id of the copy, archive or download',
  entity: 'Name of a kind of records, as `/provenance/entities/` lists them',
  environmentId: 'Id of the environment',
  'execution-runs/runId': 'Id of the run',
  'function-calls/name': 'Name of the call, as its links have it',
  id: 'Id of the record',
  'index-runs/runId': 'Id of the index run',
  'inputs/path': 'Path of the file among the inputs of the call',
  'instance-activations/instanceId': 'Id of the instance that the API reads from then on, or `default`',
  'instances/instanceId': 'Id of the instance: `default`, or that of an imported one',
  'kubernetes-tokens/credentialId': 'Id of the token',
  number: "Number of the discovery: 1 for the connection's first one",
  operationId: 'Id of the operation',
  otherPlanId: 'Id of the plan that is set beside it',
  'outputs/path': 'Path of the file below the work directory of its activity',
  planId: 'Id of the plan',
  'planning-sessions/sessionId': 'Id of the planning session',
  'registry-credentials/credentialId': 'Id of the login at a registry',
  resourceId: 'Id of the resource',
  scopeId: 'Id of the execution scope',
  'ssh-keys/credentialId': 'Id of the SSH key',
  storageId: 'Id of the storage',
  targetId: 'Id of the capacity target',
  topologyId: 'Id of the network topology',
  workflowId: 'Id of the workflow, which all of its versions share',
}

/** What `{name}` of a path stands for; undefined where the table lacks it. */
export const pathParameterOf = (path: string, name: string): string | undefined => {
  const [before = ''] = path.split(`/{${name}}`)
  return descriptions[`${before.slice(before.lastIndexOf('/') + 1)}/${name}`] ?? descriptions[name]
}
