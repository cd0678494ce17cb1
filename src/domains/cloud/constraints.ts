import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const cloudConstraints: ConstraintTexts = {
  ...textsAt('id', {
    cloud_capacity_targets_pkey: 'is taken by another capacity target; choose another id',
  }),
  ...textsAt('name', {
    cloud_capacity_targets_name:
      'is taken by another capacity target of the environment; choose another name',
    cloud_instances_name: 'is taken by another living instance of the target; choose another name',
  }),
  ...textsAt('instanceId', {
    cloud_instances_pkey: 'is taken by another cloud instance; choose another id',
  }),
}
