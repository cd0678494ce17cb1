import { shownPath } from '../../../outside-path.ts'
import { inlineBytes, readInputs } from './files.ts'
import type { CallFacts } from './calls.ts'
import type { LinkPurpose } from './links.ts'
import type { CallRequest } from './protocol.ts'
import { clock, limitSeconds, type FunctionSite } from './site.ts'

/** Fields of a request besides its inputs' contents. */
export const requestBytes = (intent: Pick<CallFacts, 'argv' | 'environment' | 'expectedOutputs'>): number =>
  Buffer.byteLength(JSON.stringify([intent.argv, intent.environment, intent.expectedOutputs])) + 2048

/** Whether the function reads inputs by URL instead of receiving them. */
export const byReference = ({ options, settings }: FunctionSite, inputBytes: number): boolean => {
  const { delivery, publicBaseUrl, payloadLimitBytes } = settings().configuration
  return (
    delivery === 'reference' ||
    (inputBytes > payloadLimitBytes && publicBaseUrl !== undefined && options.links !== undefined)
  )
}

interface Link {
  url: string
  query: string
}

/** The URLs at which the function reads inputs, and puts outputs and the answer. */
async function linksOf(
  site: FunctionSite,
  name: string,
  facts: CallFacts,
): Promise<{ read?: Link; write?: Link; result?: Link }> {
  const { options, calls, settings } = site
  const { publicBaseUrl, mode } = settings().configuration
  const expires = clock() + limitSeconds(site, facts) + 3600
  const linkTo = async (purpose: LinkPurpose, path: string): Promise<Link> => ({
    url: `${(publicBaseUrl ?? '').replace(/\/+$/, '')}/function-calls/${name}/${path}`,
    query: (await options.links?.sign(name, purpose, expires)) ?? '',
  })
  const referred = byReference(site, inlineBytes(calls.staged(name)) + requestBytes(facts))
  const writes = referred || (publicBaseUrl !== undefined && options.links !== undefined)
  return {
    ...(referred ? { read: await linkTo('inputs', 'inputs/') } : {}),
    ...(writes ? { write: await linkTo('outputs', 'outputs/') } : {}),
    ...(mode === 'callback' ? { result: await linkTo('result', 'result/') } : {}),
  }
}

/** The whole request, as bytes. */
export async function functionRequest(
  site: FunctionSite,
  name: string,
  facts: CallFacts,
): Promise<{ body: Buffer; callbackUrl: string | undefined }> {
  const { configuration } = site.settings()
  const { mode } = configuration
  const { read, write, result } = await linksOf(site, name, facts)
  const callbackUrl = result === undefined ? undefined : `${result.url}?${result.query}`
  const urlOf =
    read === undefined
      ? undefined
      : (path: string): string =>
          `${read.url}${shownPath(path).split('/').map(encodeURIComponent).join('/')}?${read.query}`
  const inside = (value: string): boolean =>
    value === facts.directory || value.startsWith(`${facts.directory}/`)
  const environment = Object.entries(facts.environment)
  const request: CallRequest = {
    schemaVersion: 1,
    name,
    argv: facts.argv,
    environment: Object.fromEntries(environment.filter(([, value]) => !inside(value))),
    pathEnvironment: Object.fromEntries(
      environment
        .filter(([, value]) => inside(value))
        .map(([key, value]) => [key, value.slice(facts.directory.length + 1)]),
    ),
    ...(facts.workingDirectory === undefined ? {} : { workingDirectory: facts.workingDirectory }),
    inputs: await readInputs(facts.directory, site.calls.staged(name), urlOf),
    expectedOutputs: facts.expectedOutputs,
    outputs: configuration.outputs,
    timeoutSeconds: facts.timeoutSeconds,
    limitSeconds: configuration.timeLimitSeconds,
    memoryBytes: facts.memoryBytes,
    answerLimitBytes: configuration.answerLimitBytes,
    respond: mode === 'sync' ? 'answer' : mode,
    ...(callbackUrl === undefined ? {} : { callback: { url: callbackUrl } }),
    ...(write === undefined ? {} : { uploads: { url: `${write.url}?${write.query}` } }),
  }
  return { body: Buffer.from(JSON.stringify(request)), callbackUrl }
}
