import type { ConstraintTexts } from '../../db/errors.ts'

/** The meaning of violated constraints of this domain's tables for the caller. */
export const cloudConstraints: ConstraintTexts = {
  cloud_capacity_targets_pkey: {
    path: 'id',
    message: 'is taken by another capacity target; choose another id',
  },
  cloud_capacity_targets_name: {
    path: 'name',
    message: 'is taken by another capacity target of the environment; choose another name',
  },
  cloud_instances_pkey: {
    path: 'instanceId',
    message: 'is taken by another cloud instance; choose another id',
  },
  cloud_instances_name: {
    path: 'name',
    message: 'is taken by another living instance of the target; choose another name',
  },
}
