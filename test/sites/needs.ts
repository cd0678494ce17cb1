import { isMet, type Need } from '../support/requirements.ts'

export const siteKinds = ['ssh', 'ssh-kernel', 'slurm', 'kubernetes', 'docker', 'serverless'] as const
export type SiteKind = (typeof siteKinds)[number]

/** A site as it is wanted; what is left out is not wanted. */
export interface WantedSite {
  kind: SiteKind
  loopback?: boolean
  accounting?: boolean
  rest?: boolean
  /** Images of the demo, which are made of programs of this machine. */
  demoImages?: boolean
}

const hosts: readonly Need[] = ['iproute2', 'iptables', 'perl-base', 'util-linux']
const ssh: readonly Need[] = ['openssh-client', 'openssh-server']
const images: readonly Need[] = ['busybox-static', 'gcc', 'libc6-dev']

const packagesOf = ({ kind, loopback, accounting, rest, demoImages }: WantedSite): readonly Need[] => {
  if (kind === 'serverless') return []
  if (kind === 'docker') return ['docker.io', 'iproute2', 'python3-minimal', 'runc', 'util-linux', ...(demoImages === true ? images : [])]
  if (kind === 'ssh') return loopback === true ? ssh : [...hosts, ...ssh]
  if (kind === 'ssh-kernel')
    return ['dbus', 'dbus-user-session', 'gcc', 'iproute2', 'libc6-dev', 'libpam-systemd', ...ssh, 'systemd', 'user-mode-linux']
  if (kind === 'kubernetes')
    return [...hosts, ...images, 'containerd', 'containernetworking-plugins', 'crun', 'docker-registry', 'openssl', 'skopeo']
  return [
    ...hosts,
    ...ssh,
    ...(['munge', 'slurm-wlm'] as const),
    ...(accounting === true ? (['mariadb-server', 'slurmdbd'] as const) : []),
    ...(rest === true ? (['slurm-wlm-jwt-plugin', 'slurmrestd'] as const) : []),
  ]
}

const needsRoot = ({ kind, loopback }: WantedSite): boolean => kind !== 'serverless' && !(kind === 'ssh' && loopback === true)

/** All that a site needs of its machine, in one line. */
export const siteNeeds = (wanted: WantedSite): string => {
  const packages = packagesOf(wanted).toSorted()
  const needs = [
    ...(needsRoot(wanted) ? ['root'] : []),
    ...(packages.length > 0 ? [`the Debian packages ${packages.join(' ')}`] : []),
    ...(wanted.kind === 'kubernetes'
      ? ['Go 1.26 or newer to build Kubernetes once (4 minutes of two cores, 3.5 GB of disk meanwhile)']
      : []),
  ]
  const name = `${wanted.kind}${wanted.loopback === true ? ' --loopback' : ''}`
  return `The site ${name} needs ${needs.length === 0 ? 'nothing beside the dependencies of this checkout' : needs.join(', and ')}.`
}

/** What of it is missing, all at once, with the remedy; undefined when nothing is. */
export const siteLacks = (wanted: WantedSite): string | undefined => {
  const packages = packagesOf(wanted)
    .filter((need) => !isMet(need))
    .toSorted()
  const lacks = [
    ...(packages.length > 0 ? [`${packages.join(', ')} missing (Debian: apt-get install ${packages.join(' ')})`] : []),
    ...(needsRoot(wanted) && !isMet('root')
      ? [`this account is not root${wanted.kind === 'ssh' ? ' (with --loopback it need not be)' : ''}`]
      : []),
  ]
  return lacks.length === 0 ? undefined : lacks.join('; ')
}
