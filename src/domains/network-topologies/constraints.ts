import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const networkTopologyConstraints: ConstraintTexts = {
  ...textsAt('id', {
    network_topologies_pkey: 'is taken by another network topology; choose another id',
  }),
  ...textsAt('executionScopeId', {
    network_topologies_scope:
      'names no execution scope (create it first), or a network topology uses the scope',
  }),
  ...textsAt('links', {
    network_links_pkey: 'hold an id that is taken; link ids are global across topologies, choose another id',
    network_links_pair: 'hold a pair of source and target twice; join it by one link',
    network_links_source:
      'hold an end that names no resource (register it first), or a link uses the resource',
    network_links_target:
      'hold an end that names no resource (register it first), or a link uses the resource',
  }),
}
