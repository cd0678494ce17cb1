import type { Problem } from '../refusal.ts'
import { gcpNameProblem } from '../drivers/cloud/gcp-names.ts'
import {
  hostProblem,
  parseHostPort,
  parseHttps,
  parseJump,
  portProblem,
  usernameProblem,
} from './endpoint.ts'
import { isFields, memberText, type Fields } from '../json-object.ts'

const cloudProviders = ['gcp', 'aws', 'azure'] as const

type Report = (path: string, message: string) => void

/**
 * Why a connection's document cannot be used. Takes any value; it skips values of the wrong shape.
 * Keys of the configuration that no type knows are kept without effect, and a type that is not
 * built has no rules.
 */
export const connectionProblems = (document: unknown, allowed: { allowProxyCommand: boolean }): Problem[] => {
  if (!isFields(document)) return []
  const problems: Problem[] = []
  const report: Report = (path, message) => void problems.push({ path, message })
  const configuration = isFields(document['configuration']) ? document['configuration'] : {}
  const { type } = document
  if (type === 'ssh') sshProblems(document, configuration, allowed, report)
  else if (type === 'kubernetes') kubernetesProblems(document, configuration, report)
  else if (type === 'cloud') cloudProblems(configuration, report)
  if (type === 'ssh' || type === 'local') siteProblems(configuration, report)
  return problems
}

const sshProblems = (
  document: Fields,
  configuration: Fields,
  { allowProxyCommand }: { allowProxyCommand: boolean },
  report: Report,
): void => {
  const place = parseHostPort(memberText(document['endpoint']))
  if (typeof place === 'string') report('endpoint', place)
  if (configuration['port'] !== undefined) {
    const wrong = portProblem(configuration['port'])
    if (wrong !== undefined) report('configuration.port', wrong)
    else if (typeof place !== 'string' && place.port !== undefined && place.port !== configuration['port'])
      report(
        'configuration.port',
        `is ${JSON.stringify(configuration['port'])}, but the endpoint has ${place.port}; give one of them`,
      )
  }
  const username = memberText(document['username'])
  const wrongName =
    username === '' ? 'an ssh connection needs the name of an account' : usernameProblem(username)
  if (wrongName !== undefined) report('username', wrongName)
  keyProblems(configuration, report)

  const jumps = configuration['proxyJump']
  const hops = typeof jumps === 'string' ? jumps.split(',') : jumps
  if (
    hops !== undefined &&
    !(Array.isArray(hops) && hops.every((hop): hop is string => typeof hop === 'string'))
  )
    report(
      'configuration.proxyJump',
      'must be a text user@host:port, several with commas, or a list of such texts',
    )
  else if (hops !== undefined) {
    if (hops.length > maxHops)
      report('configuration.proxyJump', `names ${hops.length} hosts; at most ${maxHops} can be gone through`)
    for (const hop of hops.slice(0, maxHops)) {
      const parsed = parseJump(hop.trim())
      if (hop.trim() !== '' && typeof parsed === 'string') report('configuration.proxyJump', parsed)
    }
  }
  const command = configuration['proxyCommand']
  if (
    command !== undefined &&
    (typeof command !== 'string' || command.trim() === '' || command.includes('\0'))
  )
    report('configuration.proxyCommand', 'must be a command line')
  else if (command !== undefined && !allowProxyCommand)
    report(
      'configuration.proxyCommand',
      'runs a program on this machine, which SERVICE_ALLOW_PROXY_COMMAND does not allow; use proxyJump',
    )
  if (command !== undefined && hops !== undefined)
    report('configuration.proxyCommand', 'stands beside proxyJump; give one of them')
  const direct = configuration['directTo']
  if (
    direct !== undefined &&
    !(Array.isArray(direct) && direct.length <= 100 && direct.every((id) => typeof id === 'string'))
  )
    report('configuration.directTo', 'must be a list of at most 100 ids of connections')
  flagProblem(configuration, 'forwardAgent', report)
  flagProblem(configuration, 'dynamicHost', report)
}

const maxHops = 8

const keyProblems = (configuration: Fields, report: Report): void => {
  const {
    hostKeyPolicy: policy,
    knownHosts,
    hostKeyFingerprints: fingerprints,
    hostKeyAlias: alias,
  } = configuration
  if (policy !== undefined && policy !== 'strict' && policy !== 'accept-new')
    report(
      'configuration.hostKeyPolicy',
      policy === 'off'
        ? '"off" is refused: a host whose key is not checked is anybody; give strict, or accept-new ' +
            'to record the first key'
        : `${JSON.stringify(policy)} is no policy; give strict or accept-new`,
    )
  if (knownHosts !== undefined && typeof knownHosts !== 'string')
    report('configuration.knownHosts', 'must be the text of a known_hosts file')
  if (alias !== undefined && (typeof alias !== 'string' || hostProblem(alias) !== undefined))
    report('configuration.hostKeyAlias', 'must be a host name, as known_hosts has it')
  if (fingerprints === undefined) return
  if (!Array.isArray(fingerprints))
    report('configuration.hostKeyFingerprints', 'must be a list of fingerprints')
  else if (!fingerprints.every((one) => typeof one === 'string' && /^SHA256:[A-Za-z0-9+/]{43}$/.test(one)))
    report(
      'configuration.hostKeyFingerprints',
      'must be fingerprints as ssh-keygen -lf prints them: SHA256: and 43 characters',
    )
}

const kubernetesProblems = (document: Fields, configuration: Fields, report: Report): void => {
  const place = parseHttps(memberText(document['endpoint']))
  if (typeof place === 'string') report('endpoint', place)
  const namespace = configuration['namespace']
  if (
    namespace !== undefined &&
    !(typeof namespace === 'string' && /^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(namespace))
  )
    report(
      'configuration.namespace',
      'must be the name of a namespace: lower-case letters, digits and hyphens, at most 63',
    )
  const authority = configuration['certificateAuthority']
  if (
    authority !== undefined &&
    !(typeof authority === 'string' && authority.includes('-----BEGIN CERTIFICATE-----'))
  )
    report('configuration.certificateAuthority', 'must be a certificate in PEM form')
}

/**
 * Settings of the earlier implementation that are kept, shown and never obeyed, each with its
 * replacement. A document cannot make this service read a file of this machine or send a token to
 * an unchecked server.
 */
export const unheededTrust = ({
  type,
  configuration = {},
}: {
  type: string
  configuration?: Fields | undefined
}): Problem[] => {
  const problems: Problem[] = []
  const report = (key: string, isGiven: boolean, message: string): void => {
    if (isGiven) problems.push({ path: `configuration.${key}`, message })
  }
  const named = (key: string): boolean => memberText(configuration[key]).trim() !== ''
  if (type === 'ssh') {
    const remedy = 'give the lines of the file as knownHosts, or hostKeyFingerprints'
    report('knownHostsFile', named('knownHostsFile'), `is not read; ${remedy}`)
  }
  if (type === 'kubernetes') {
    const isSkipped = configuration['insecureSkipTLSVerify'] === true
    const remedy = 'give the certificate of the cluster as certificateAuthority'
    report('caFile', named('caFile'), 'is not read; give the PEM text of the file as certificateAuthority')
    report('insecureSkipTLSVerify', isSkipped, `is not obeyed; ${remedy}`)
  }
  return problems
}

/**
 * Whether an ssh connection gives a means to identify its host: a file of this machine counts too,
 * although it is not read.
 */
export const givesTrust = ({ configuration = {} }: { configuration?: Fields | undefined }): boolean =>
  ['knownHosts', 'hostKeyFingerprints', 'knownHostsFile'].some((key) => {
    const value = configuration[key]
    return Array.isArray(value) ? value.length > 0 : memberText(value).trim() !== ''
  })

const cloudProblems = (configuration: Fields, report: Report): void => {
  const provider = configuration['provider']
  if (!cloudProviders.some((one) => one === provider))
    report(
      'configuration.provider',
      `${JSON.stringify(provider) ?? 'nothing'} is no provider; give ${cloudProviders.join(', ')}`,
    )
  if (provider !== 'gcp') return
  for (const [key, kind] of [
    ['region', 'name'],
    ['projectId', 'project'],
  ] as const) {
    const text = configuration[key]
    const wrong = text === undefined || text === '' ? undefined : gcpNameProblem(memberText(text), kind)
    if (wrong !== undefined) report(`configuration.${key}`, wrong)
  }
}

/** The rules of both kinds of machine: work directory and scheduling. */
const siteProblems = (configuration: Fields, report: Report): void => {
  const { scheduler } = configuration
  if (scheduler !== undefined && scheduler !== 'slurm' && scheduler !== 'none' && scheduler !== '')
    report('configuration.scheduler', `${JSON.stringify(scheduler)} is not known; give slurm or none`)
  for (const key of ['workDirectory', 'scriptDirectory'])
    if (
      configuration[key] !== undefined &&
      configuration[key] !== '' &&
      !/^\/[^\0\n]*$/.test(memberText(configuration[key]))
    )
      report(`configuration.${key}`, 'must be an absolute path of the site')
  const { partition } = configuration
  if (partition !== undefined && partition !== '' && !/^[A-Za-z0-9_.+:-]{1,255}$/.test(memberText(partition)))
    report('configuration.partition', 'must be the name of a partition: letters, digits and _ . + : -')
  flagProblem(configuration, 'skipSchedulerCheck', report)
}

const flagProblem = (configuration: Fields, key: string, report: Report): void => {
  if (configuration[key] !== undefined && typeof configuration[key] !== 'boolean')
    report(`configuration.${key}`, 'must be true or false')
}
