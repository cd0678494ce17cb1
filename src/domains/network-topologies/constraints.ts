import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const networkTopologyConstraints: ConstraintTexts = {
  network_topologies_pkey: { path: 'id', message: 'is taken by another network topology; choose another id' },
  network_topologies_scope: {
    path: 'executionScopeId',
    message: 'names no execution scope (create it first), or a network topology uses the scope',
  },
  network_links_pkey: {
    path: 'links',
    message: 'hold an id that is taken; link ids are global across topologies, choose another id',
  },
  network_links_pair: {
    path: 'links',
    message: 'hold a pair of source and target twice; join it by one link',
  },
  network_links_source: {
    path: 'links',
    message: 'hold an end that names no resource (register it first), or a link uses the resource',
  },
  network_links_target: {
    path: 'links',
    message: 'hold an end that names no resource (register it first), or a link uses the resource',
  },
}
