import type { ConstraintTexts } from '../../db/errors.ts'

/** What a violated constraint of this domain's tables means to the caller. */
export const networkTopologieConstraints: ConstraintTexts = {
  network_topologies_pkey: { path: 'id', message: 'is taken by another network topology; choose another id' },
  network_topologies_scope: { path: 'executionScopeId', message: 'the execution scope does not exist, or a network topology uses it' },
  network_links_pkey: { path: 'links', message: 'a link id is taken; link ids are global across topologies' },
  network_links_pair: { path: 'links', message: 'two links join the same source and target' },
  network_links_source: { path: 'links', message: 'the resource at one end is used by, or missing for, a network link' },
  network_links_target: { path: 'links', message: 'the resource at one end is used by, or missing for, a network link' },
}
