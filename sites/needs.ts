import { isMet, sites, type Need } from './requirements.ts'

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

const accountingPackages: readonly Need[] = ['mariadb-server', 'slurmdbd']

/** `root`, and Debian packages. What every Debian has is left out. */
const needsOf = ({ kind, loopback, accounting, rest, demoImages }: WantedSite): readonly Need[] => {
  const lists: Readonly<Record<SiteKind, readonly Need[]>> = {
    ssh: loopback === true ? sites.sshd : sites.ssh,
    'ssh-kernel': [...sites.kernelHost, 'iproute2', 'openssh-client'],
    slurm: [
      ...sites.slurm.filter((need) => need !== 'slurmrestd' && !accountingPackages.includes(need)),
      ...(accounting === true ? accountingPackages : []),
      ...(rest === true ? (['slurmrestd', 'slurm-wlm-jwt-plugin'] as const) : []),
    ],
    kubernetes: sites.kubernetes,
    docker: [
      ...(['root', 'docker.io', 'iproute2', 'python3-minimal', 'runc'] as const),
      ...(demoImages === true ? (['busybox-static', 'gcc', 'libc6-dev'] as const) : []),
    ],
    serverless: [],
  }
  return lists[kind]
}

const packagesOf = (wanted: WantedSite): Need[] =>
  needsOf(wanted)
    .filter((need) => need !== 'root')
    .toSorted()
const needsRoot = (wanted: WantedSite): boolean => needsOf(wanted).includes('root')

/** All that a site needs of its machine, in one line. */
export const siteNeeds = (wanted: WantedSite): string => {
  const packages = packagesOf(wanted)
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
  const packages = packagesOf(wanted).filter((need) => !isMet(need))
  const lacks = [
    ...(packages.length > 0 ? [`${packages.join(', ')} missing (Debian: apt-get install ${packages.join(' ')})`] : []),
    ...(needsRoot(wanted) && !isMet('root')
      ? [`this account is not root${wanted.kind === 'ssh' ? ' (with --loopback it need not be)' : ''}`]
      : []),
  ]
  return lacks.length === 0 ? undefined : lacks.join('; ')
}
