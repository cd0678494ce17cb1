import { isMet, nfsNeeds, sites, type Need } from './requirements.ts'

export const siteKinds = [
  'ssh',
  'ssh-kernel',
  'slurm',
  'kubernetes',
  'docker',
  'serverless',
  's3',
  'gcs',
  'cloud',
  'nfs',
] as const
export type SiteKind = (typeof siteKinds)[number]

/** A requested site. Omitted members are off. */
export interface WantedSite {
  kind: SiteKind
  loopback?: boolean
  accounting?: boolean
  rest?: boolean
  /** Images of the demo, made of programs of this machine. */
  demoImages?: boolean
}

const accountingPackages: readonly Need[] = ['mariadb-server', 'slurmdbd']

/** `root`, and Debian packages, without those that every Debian has. */
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
    s3: [],
    gcs: [],
    cloud: sites.ssh,
    nfs: [...nfsNeeds, 'iproute2', 'openssh-client'],
  }
  return lists[kind]
}

const packagesOf = (wanted: WantedSite): Need[] =>
  needsOf(wanted)
    .filter((need) => need !== 'root')
    .toSorted()
const needsRoot = (wanted: WantedSite): boolean => needsOf(wanted).includes('root')

/** All requirements of a site, in one line. */
export const siteNeeds = (wanted: WantedSite): string => {
  const packages = packagesOf(wanted)
  const needs = [
    ...(needsRoot(wanted) ? ['root'] : []),
    ...(packages.length > 0 ? [`the Debian packages ${packages.join(' ')}`] : []),
    ...(wanted.kind === 's3' || wanted.kind === 'gcs'
      ? ['Go 1.26 or newer to build the server once (40 seconds of two cores)']
      : []),
    ...(wanted.kind === 'kubernetes'
      ? ['Go 1.26 or newer to build Kubernetes once (4 minutes of two cores, 3.5 GB of disk meanwhile)']
      : []),
  ]
  const name = `${wanted.kind}${wanted.loopback === true ? ' --loopback' : ''}`
  return `The site ${name} needs ${
    needs.length === 0 ? 'nothing beside the dependencies of this checkout' : needs.join(', and ')
  }.`
}

/** The missing requirements, all at once, with the remedy; undefined where there are none. */
export const siteLacks = (wanted: WantedSite): string | undefined => {
  const packages = packagesOf(wanted).filter((need) => !isMet(need))
  const lacks = [
    ...(packages.length > 0
      ? [`${packages.join(', ')} missing (Debian: apt-get install ${packages.join(' ')})`]
      : []),
    ...(needsRoot(wanted) && !isMet('root')
      ? [`this account is not root${wanted.kind === 'ssh' ? ' (with --loopback it need not be)' : ''}`]
      : []),
  ]
  return lacks.length === 0 ? undefined : lacks.join('; ')
}
