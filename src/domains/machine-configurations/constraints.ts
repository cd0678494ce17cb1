import { textsAt, type ConstraintTexts } from '../../db/errors.ts'

export const machineConfigurationConstraints: ConstraintTexts = {
  ...textsAt('id', {
    machine_configurations_pkey: 'is taken by another machine configuration; choose another id',
    machine_configuration_versions_pkey:
      'is taken by another version; version ids are global, choose another id',
  }),
  ...textsAt('version', {
    machine_configuration_versions_number:
      'exists already in the machine configuration; versions never change, so add a higher one',
  }),
}
